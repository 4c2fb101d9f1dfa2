"""What an installed package would bring; the tests announce it as entry points."""

from __future__ import annotations

import asyncio
import threading
import time
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from milepost.ports.tools import Answer, Approval, Call, EffectClass, Parallel, Tool

NOTE = {
    "type": "object",
    "properties": {"text": {"type": "string", "minLength": 1}},
    "required": ["text"],
    "additionalProperties": False,
}
calls: list[Call] = []
given_up = threading.Event()


def _note(call: Call) -> str:
    calls.append(call)
    assert threading.current_thread() is not threading.main_thread()
    return f"noted {call.arguments['text']}"


async def _shout(call: Call) -> Answer:
    await asyncio.sleep(0)
    return Answer(str(call.arguments["text"]).upper(), detail={"letters": len(call.arguments["text"])})


def _hang(call: Call) -> str:
    while not call.cancelled():
        time.sleep(0.01)
    given_up.set()
    return "too late"


def _fail(call: Call) -> str:
    raise LookupError("no such thing")


def _leave(call: Call) -> str:
    raise SystemExit(3)


async def _cancel(call: Call) -> str:
    raise asyncio.CancelledError


async def _quit(call: Call) -> str:
    raise SystemExit(3)


note = Tool("Takes a note.", NOTE, _note, EffectClass.OBSERVE, Parallel.SAFE, Approval.ALLOW, timeout=10)
shout = Tool("Shouts.", NOTE, _shout)
hang = Tool("Hangs.", NOTE, _hang)
fail = Tool("Fails.", NOTE, _fail)
leave = Tool("Leaves.", NOTE, _leave)
cancel = Tool("Cancels itself.", NOTE, _cancel)
quits = Tool("Ends the process.", NOTE, _quit)
untidy = Tool("Says strange things.", NOTE, lambda call: Answer("done", 0, ["x"]))  # type: ignore[arg-type]
number = Tool("Returns no text.", NOTE, lambda call: 7)  # type: ignore[arg-type,return-value]
schemaless = Tool("Has no schema.", {"type": "string"}, _note)
model = Tool("Says it is a model call.", NOTE, _note, EffectClass.MODEL)
not_a_tool = "text"


def announce(monkeypatch: pytest.MonkeyPatch, group: str, *names: str, module: str = __name__) -> None:
    """Let these names look installed, beside one whose package cannot be imported."""
    points = [EntryPoint(name, f"{module}:{name}", group) for name in names]
    points.append(EntryPoint("broken", "no_such_package_at_all:x", group))
    monkeypatch.setattr("milepost.extensions.loading.entry_points", lambda **_: EntryPoints(points))
