"""Tools of installed packages: found by entry point, run beside the event loop, ended by their timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from milepost.domain.effects import EffectClass
from milepost.domain.errors import OutcomeUnknown, ToolFailed, ToolUnavailable
from milepost.domain.extensions import TOOLS_GROUP, PythonTool
from milepost.domain.tools import Approval, CustomTool, Parallel, ToolPolicy
from milepost.extensions.http import PeerClient
from milepost.extensions.threads import Threads
from milepost.extensions.tools import ConfiguredTools
from milepost.ports.tools import Answer
from tests.extensions import packages
from tests.extensions.conftest import made

NAMES = (
    "note",
    "shout",
    "hang",
    "fail",
    "leave",
    "cancel",
    "quits",
    "untidy",
    "number",
    "schemaless",
    "model",
    "not_a_tool",
    "broken",
    "nothing",
)
Make = Callable[..., ConfiguredTools]


@pytest.fixture
def make(client: PeerClient, monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(*names: str, **changes: object) -> ConfiguredTools:
        packages.announce(monkeypatch, TOOLS_GROUP, *(name for name in NAMES if name not in ("broken", "nothing")))
        tools = ConfiguredTools({name: PythonTool(name, name, **changes) for name in names}, client)  # type: ignore[arg-type]
        tools.load()
        return tools

    return make


async def test_a_function_runs_in_a_thread_and_a_coroutine_on_the_loop(make: Make) -> None:
    tools = make("note", "shout")
    assert (await tools.run(made("note", text="milk"), 5)).text == "noted milk"
    assert packages.calls[-1].idempotency_key == "key-1"
    shouted = await tools.run(made("shout", text="milk"), 5)
    assert (shouted.text, shouted.detail) == ("MILK", {"letters": 4})


async def test_what_a_turn_records_is_the_packages_word_unless_the_configuration_says_otherwise(make: Make) -> None:
    ((definition, tool),) = make("note").offered(["note"])
    assert (definition.name, definition.description, definition.parameters) == ("note", "Takes a note.", packages.NOTE)
    assert tool == CustomTool("note", ToolPolicy(EffectClass.OBSERVE, Parallel.SAFE, Approval.ALLOW), 10)
    ((_, plain),) = make("shout").offered(["shout"])
    assert plain.policy == ToolPolicy(EffectClass.AT_MOST_ONCE, Parallel.ORDERED, Approval.ASK)
    changed = make(
        "note", effect=EffectClass.KEYED, parallel=Parallel.EXCLUSIVE, approval=Approval.ASK, timeout=3
    ).offered(["note"])[0][1]
    assert changed == CustomTool("note", ToolPolicy(EffectClass.KEYED, Parallel.EXCLUSIVE, Approval.ASK), 3)


async def test_a_function_that_hangs_is_given_up_and_told_so(make: Make) -> None:
    packages.given_up.clear()
    with pytest.raises(OutcomeUnknown, match="did not return"):
        await make("hang").run(made("hang", text="x"), 0.1)
    assert await asyncio.to_thread(packages.given_up.wait, 10)


@pytest.mark.parametrize(
    ("name", "said"),
    [("fail", "no such thing"), ("leave", "SystemExit"), ("quits", "SystemExit"), ("cancel", "cancelled")],
)
async def test_whatever_it_raises_is_an_error_of_the_tool(make: Make, name: str, said: str) -> None:
    with pytest.raises(ToolFailed, match=said):
        await make(name).run(made(name, text="x"), 5)


async def test_something_else_than_a_text_is_told_after_the_fact(make: Make) -> None:
    answer = await make("number").run(made("number", text="x"), 5)
    assert answer.is_error and "returned int instead of a text" in answer.text
    assert await make("untidy").run(made("untidy", text="x"), 5) == Answer("done", False, {}), "its text is not lost"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", "cannot be loaded (ModuleNotFoundError"),
        ("nothing", "no installed package"),
        ("not_a_tool", "is str, not milepost.ports.tools.Tool"),
        ("schemaless", "JSON Schema object"),
        ("model", "effect class 'model'"),
    ],
)
async def test_what_cannot_be_had_is_told_when_it_is_wanted(make: Make, name: str, said: str) -> None:
    tools = make(name, "note")
    assert list(tools.problems()) == [name]
    with pytest.raises(ToolUnavailable) as caught:
        tools.offered([name])
    assert said in str(caught.value)
    assert tools.offered(["note"])


async def test_threads_are_bounded() -> None:
    threads, release = Threads(1), asyncio.Event()
    loop = asyncio.get_running_loop()

    def block(_: object) -> str:
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result(10)
        return "done"

    first = asyncio.ensure_future(threads.call("a", block, None, 10))
    await asyncio.sleep(0.05)
    with pytest.raises(ToolFailed, match="threads are taken"):
        await threads.call("b", block, None, 0.05)
    release.set()
    assert await first == "done"
    assert await threads.call("c", block, None, 5) == "done"
