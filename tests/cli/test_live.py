"""What a person sees of a turn, from its frames."""

from __future__ import annotations

import io
from typing import Any

import pytest

from cli.live import SUPERSEDED, THINKING, LiveView


def delta(text: str, *, effect: str = "e1", attempt: int = 1, channel: str = "text") -> dict[str, Any]:
    data = {"turn_id": "t", "effect_id": effect, "attempt": attempt, "channel": channel, "offset": 0, "text": text}
    return {"type": "delta", "data": data}


def event(type_: str, **payload: Any) -> dict[str, Any]:
    return {"type": "event", "data": {"type": type_, "turn_id": "t", "payload": payload}}


def called(text: str, *calls: tuple[str, str, str], effect: str = "e1") -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"kind": "text", "text": text}] if text else []
    for call_id, tool, arguments in calls:
        parts.append({"kind": "tool_call", "call_id": call_id, "tool": tool, "arguments": {"text": arguments}})
    return event("model.called", effect_id=effect, message={"parts": parts})


def superseded(attempt: int) -> dict[str, Any]:
    return {"type": "attempt.superseded", "data": {"turn_id": "t", "effect_id": "e1", "attempt": attempt}}


def shown(*frames: dict[str, Any]) -> str:
    stream = io.StringIO()
    view = LiveView(stream)
    for frame in frames:
        view.frame(frame)
    view.close()
    return stream.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(*frames: dict[str, Any]) -> str:
    stream = Terminal()
    view = LiveView(stream)
    for frame in frames:
        view.frame(frame)
    view.close()
    return stream.getvalue()


def test_text_is_written_as_it_comes_and_once() -> None:
    assert shown(delta("Hello "), delta("there"), called("Hello there")) == "Hello there\n"
    assert shown(called("Hello there")) == "Hello there\n", "a reader that comes late gets the text from the event"
    assert shown(delta("Hello "), called("Hello there")) == "Hello there\n", "what the stream lost is filled up"


def test_the_text_of_a_superseded_attempt_is_marked() -> None:
    text = shown(delta("Wrong"), superseded(1), delta("Right", attempt=2), called("Right"))
    assert text == f"Wrong\n{SUPERSEDED}\nRight\n"


def test_on_a_terminal_text_flows_as_it_comes_also_beyond_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    words = [f"word{number} " for number in range(100)]
    stream = Terminal()
    view = LiveView(stream)
    written = ""
    for word in words:
        view.frame(delta(word))
        written += word
        assert stream.getvalue() == written, "all of the text and nothing else, at once"
    view.frame(called(written))
    view.close()
    assert stream.getvalue() == written + "\n"


def test_on_a_terminal_thinking_is_shown_until_the_answer_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    text = on_terminal(delta("Hm", channel="reasoning"), delta("hm", channel="reasoning"), delta("Yes"), called("Yes"))
    before, _, after = text.partition("\r\x1b[2K")
    assert before.count(THINKING) == 1
    assert after == "Yes\n"


def test_an_attempt_that_follows_without_a_notice_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = (delta("Wrong"), delta("Right", attempt=2), delta("late"), superseded(1), called("Right"))
    assert shown(*frames) == f"Wrong\n{SUPERSEDED}\nRight\n"


def test_a_line_in_the_middle_of_the_text_does_not_repeat_the_text() -> None:
    text = shown(delta("One two"), event("turn.stop_requested"), delta(" three"), called("One two three four"))
    assert text == "One two\nStop was asked for.\n three four\n"


def test_a_late_notice_about_an_earlier_attempt_changes_nothing() -> None:
    assert shown(delta("Right", attempt=2), superseded(1), called("Right")) == "Right\n"


def test_tool_cards_have_arguments_and_result() -> None:
    text = shown(
        called("", ("c1", "bash", '{"command": "ls"}')),
        event("tool.started", effect_id="f1", call_id="c1", tool="bash"),
        event(
            "tool.finished",
            call_id="c1",
            tool="bash",
            state="succeeded",
            is_error=False,
            detail={"exit_code": 0},
            output={"text": "a\nb\n" + "c" * 500},
        ),
        event(
            "tool.finished",
            call_id="c2",
            tool="grep",
            state="failed",
            is_error=True,
            detail={},
            output={"text": "no such file"},
        ),
    )
    lines = text.splitlines()
    assert lines[0] == '▸ bash {"command": "ls"}'
    assert lines[1].startswith("  ✓ exit 0 · a b ccc")
    assert len(lines[1]) < 140
    assert lines[2] == "  ✗ grep failed · no such file"


def test_nothing_a_model_or_tool_says_steers_the_terminal() -> None:
    evil = "\x1b]0;owned\x07\x1b[2Jtext\ud800\x00"
    for text in (
        shown(
            delta(evil), called(evil, ("c", "bash", evil)), event("tool.started", effect_id="f", call_id="c", tool=evil)
        ),
        on_terminal(called(evil)),
        shown(event("agent.started", agent=evil, provider="[red]p", model="m", tools_unavailable=evil)),
    ):
        assert "\x1b]" not in text
        assert "\x1b[2J" not in text
        assert "\x00" not in text
        text.encode("utf-8")
    assert "[red]p" in text, "markup is text"


def test_reasoning_is_no_part_of_the_answer() -> None:
    assert shown(delta("Hm", channel="reasoning"), delta("Yes"), called("Yes")) == "Yes\n"


def test_progress_is_told_when_it_changes() -> None:
    def status(value: str) -> dict[str, Any]:
        return {"type": "status", "data": {"active_turn": {"turn_id": "t", "status": value}}}

    text = shown(status("working"), status("recovering"), status("recovering"), status("stopping"))
    assert text.splitlines() == ["No worker answers; the turn goes on when one is back ...", "Stopping ..."]


def test_a_call_that_did_not_run_or_may_have_run_has_a_mark_of_its_own() -> None:
    def finished(state: str) -> dict[str, Any]:
        end = {"tool": "bash", "state": state, "is_error": True, "detail": {}, "output": {"text": "why"}}
        return event("tool.finished", call_id="c", **end)

    text = shown(called("", ("c", "bash", "{}")), finished("denied"), finished("uncertain"), finished("cancelled"))
    assert text.splitlines() == ["  ⊘ denied · why", "  ! outcome unknown · why", "  ■ cancelled · why"]


def test_a_call_that_is_dispatched_again_is_found_again_not_a_second_call() -> None:
    def started(attempt: int) -> dict[str, Any]:
        return event("tool.started", effect_id="f", call_id="c", tool="bash", attempt=attempt)

    text = shown(called("", ("c", "bash", "make")), started(1), started(2))
    assert text.splitlines() == ["▸ bash make", "  ↻ bash found again (attempt 2)"]
    assert shown(started(2)) == "▸ bash · found again (attempt 2)\n", "also for a reader who comes late"
