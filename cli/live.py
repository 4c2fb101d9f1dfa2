"""Showing a turn while it runs: streamed text, tool cards, progress."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TextIO

from cli.marks import mark_of
from cli.output import printable, short

ARGUMENTS_WIDTH = 110
RESULT_WIDTH = 110
SUPERSEDED = "[that attempt was superseded: its text does not count, the answer begins again]"
THINKING = "Thinking ..."

Json = Mapping[str, Any]


class LiveView:
    """Turns frames into lines on `stream`.

    Text is written as it comes and never taken back: where an attempt of a call is superseded, a line says that the
    answer begins again. A terminal shows in between that the model is thinking.
    """

    def __init__(self, stream: TextIO | None = None, *, color: bool | None = None) -> None:
        from rich.console import Console

        self._stream = stream or sys.stdout
        self._console = Console(file=self._stream, highlight=False, soft_wrap=True, no_color=color is False)
        self._transient = self._console.is_terminal and not self._console.is_dumb_terminal
        self._thinking = False
        self._open_line = False
        self._call = ""
        self._attempt = 0
        self._text = ""
        self._arguments: dict[str, str] = {}
        self._begun: set[str] = set()
        self._parts: set[str] = set()
        self._status = ""

    def close(self) -> None:
        """End the line of a call in flight."""
        self._end_line()
        self._text = ""

    def frame(self, frame: Json) -> None:
        """Show one frame."""
        data = frame["data"]
        match frame["type"]:
            case "delta":
                self._delta(data)
            case "attempt.superseded":
                self._superseded(data)
            case "event":
                self._event(data["type"], data["payload"])
            case "status" | "snapshot":
                self._progress(data.get("active_turn"))
            case _:
                pass

    def _progress(self, active: Json | None) -> None:
        status = str(active["status"]) if active else ""
        messages = {
            "waiting": "Waiting for Temporal to take the turn ...",
            "recovering": "No worker answers; the turn goes on when one is back ...",
            "waiting_for_person": "Waiting for a person ...",
            "stopping": "Stopping ...",
        }
        if status != self._status and status in messages and self._status:
            self._line(messages[status], "dim")
        self._status = status

    def _delta(self, data: Json) -> None:
        call, attempt = data["effect_id"], data["attempt"]
        if len(self._parts) > 1:
            # Several agents speak at the same time: each answer is shown when it is whole.
            return
        if call == self._call and attempt < self._attempt:
            return
        if (call, attempt) != (self._call, self._attempt):
            self._new_call(call, attempt)
        if data["channel"] == "text":
            self._text += data["text"]
            self._write(data["text"])
        elif self._transient and not self._open_line and not self._thinking:
            self._console.print(THINKING, style="dim italic", end="")
            self._stream.flush()
            self._thinking = True

    def _new_call(self, call: str, attempt: int) -> None:
        if self._text and call == self._call:
            self._line(SUPERSEDED, "dim")
        self._end_line()
        self._call, self._attempt, self._text = call, attempt, ""

    def _superseded(self, data: Json) -> None:
        if data["effect_id"] != self._call or data["attempt"] < self._attempt:
            return
        if self._text:
            self._line(SUPERSEDED, "dim")
        self._end_line()
        self._call = self._text = ""

    def _event(self, type_: str, payload: Json) -> None:
        match type_:
            case "turn.begun":
                self._parts.clear()
            case "agent.started":
                self._parts.add(payload["agent"])
                self._line(f"{payload['agent']} · {payload['provider']}/{payload['model']}", "bold cyan")
                if payload.get("tools_unavailable"):
                    self._line(payload["tools_unavailable"], "yellow")
            case "approval.requested":
                self._asked(payload)
            case "approval.resolved":
                self._answered(payload)
            case "model.called":
                self._called(payload)
            case "context.compacted":
                size = f"{payload['tokens_before']:,} → {payload['tokens_after']:,} of {payload['window']:,} tokens"
                summarized = payload["effect_id"] and payload["summary"] is not None
                done = "summarized" if summarized else "shortened"
                self._line(f"The conversation was {done} to fit the context window ({size}).", "dim")
            case "model.retried":
                self._line(f"The model call failed and is tried again: {short(payload['error_message'])}", "yellow")
            case "tool.started":
                self._started(payload)
            case "tool.finished":
                self._finished(payload)
            case "coordination.planned":
                for subtask in payload["subtasks"]:
                    after = ", ".join(str(number) for number in subtask["depends_on"])
                    self._line(
                        f"  {subtask['number']}. {subtask['name']}{f' (after {after})' if after else ''}", "bold"
                    )
                for note in payload["notes"]:
                    self._line(f"  {note}", "yellow")
            case "coordination.awarded":
                for award in payload["awards"]:
                    self._line(f"  subtask {award['subtask']} → {award['agent']}", "dim")
            case "coordination.subtask_ended":
                why = f": {short(payload['error_message'])}" if payload["error_message"] else ""
                style = "green" if payload["state"] == "succeeded" else "yellow"
                self._line(f"  subtask {payload['subtask']} {payload['state']}{why}", style)
            case "turn.stop_requested":
                self._line("Stop was asked for.", "yellow")
            case _:
                pass

    def _called(self, payload: Json) -> None:
        parts = payload["message"]["parts"]
        text = "".join(part["text"] for part in parts if part["kind"] == "text")
        if len(self._parts) > 1 and text:
            self._line(f"{payload['agent']}:", "cyan")
        streamed = self._text if payload["effect_id"] == self._call else ""
        if text.startswith(streamed):
            # What a slow start or a lost stream left out.
            self._write(text[len(streamed) :])
            self._end_line()
        elif text:
            self._line(f"{SUPERSEDED}\n{text}", "")
        for part in parts:
            if part["kind"] == "tool_call":
                self._arguments[part["call_id"]] = part["arguments"]["text"]
        self._call = self._text = ""

    def _asked(self, payload: Json) -> None:
        arguments = short(payload["arguments"], ARGUMENTS_WIDTH)
        self._line(f"  ? {payload['tool']} {arguments}\n    needs your approval:", "bold yellow")
        for verb in ("approve", "reject"):
            self._line(f"      milepost approvals {verb} {payload['approval_id']}", "yellow")

    def _answered(self, payload: Json) -> None:
        by = f" by {payload['actor']}" if payload["actor"] else ""
        reason = f": {short(payload['reason'], RESULT_WIDTH)}" if payload["reason"] else ""
        style = "green" if payload["state"] == "approved" else "yellow"
        self._line(f"  · {payload['state']}{by}{reason}", style)

    def _started(self, payload: Json) -> None:
        # A call that a worker lost is dispatched again under the same effect: it is not a second call.
        attempt = payload.get("attempt", 1)
        again = f"found again (attempt {attempt})" if attempt > 1 else ""
        if payload["effect_id"] in self._begun:
            self._line(f"  ↻ {payload['tool']} {again or 'begins again'}", "yellow")
            return
        self._begun.add(payload["effect_id"])
        arguments = short(self._arguments.get(payload["call_id"], ""), ARGUMENTS_WIDTH)
        line = f"▸ {payload['tool']} {arguments}".rstrip()
        self._line(f"{line} · {again}" if again else line, "magenta")

    def _finished(self, payload: Json) -> None:
        detail = payload.get("detail") or {}
        exit_code = detail.get("exit_code")
        mark = mark_of(payload["state"], is_error=payload["is_error"])
        label = f"exit {exit_code}" if exit_code is not None else mark.word or str(payload["state"])
        output = short(payload["output"]["text"], RESULT_WIDTH)
        if payload["call_id"] not in self._arguments:
            label = f"{payload['tool']} {label}"
        self._line(f"  {mark.sign} {label}{' · ' + output if output else ''}", mark.style)

    def _line(self, text: str, style: str) -> None:
        self._end_line()
        self._console.print(printable(text), style=style or None, markup=False)

    def _write(self, text: str) -> None:
        if text:
            self._forget_thinking()
            self._stream.write(printable(text))
            self._stream.flush()
            self._open_line = not text.endswith("\n")

    def _end_line(self) -> None:
        self._forget_thinking()
        if self._open_line:
            self._stream.write("\n")
            self._stream.flush()
            self._open_line = False

    def _forget_thinking(self) -> None:
        if self._thinking:
            self._stream.write("\r\x1b[2K")
            self._thinking = False
