"""Showing a turn while it runs: streamed text, tool cards, progress."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

from cli.marks import mark_of
from cli.output import printable, short

if TYPE_CHECKING:
    from rich.live import Live

ARGUMENTS_WIDTH = 110
RESULT_WIDTH = 110
SUPERSEDED = "[that attempt was superseded; its text does not count]"

Json = Mapping[str, Any]


class LiveView:
    """Turns frames into lines on `stream`.

    On a terminal the text of a call in flight stands in a region that is replaced by the final text, so that the text
    of a superseded attempt disappears. Elsewhere text is written as it comes, and a superseded attempt is marked.
    """

    def __init__(self, stream: TextIO | None = None, *, color: bool | None = None) -> None:
        from rich.console import Console

        self._stream = stream or sys.stdout
        self._console = Console(file=self._stream, highlight=False, soft_wrap=True, no_color=color is False)
        self._terminal = self._console.is_terminal
        self._live: Live | None = None
        self._call = ""
        self._attempt = 0
        self._text = ""
        self._reasoning = ""
        self._shown: set[str] = set()
        self._arguments: dict[str, str] = {}
        self._status = ""

    def close(self) -> None:
        """End the region of a call in flight; what it held stays as plain text."""
        text = self._text
        self._end_region()
        if self._terminal and text:
            self._console.print(printable(text), markup=False)
        elif text and not text.endswith("\n"):
            self._stream.write("\n")
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
        key = (data["effect_id"], data["attempt"])
        if key != (self._call, self._attempt):
            self._new_call(*key)
        if data["channel"] == "text":
            self._text += data["text"]
            if not self._terminal:
                self._stream.write(printable(data["text"]))
                self._stream.flush()
        else:
            self._reasoning += data["text"]
        if self._terminal:
            self._refresh()

    def _new_call(self, call: str, attempt: int) -> None:
        self._end_region()
        self._call, self._attempt, self._text, self._reasoning = call, attempt, "", ""

    def _superseded(self, data: Json) -> None:
        if data["effect_id"] != self._call or data["attempt"] < self._attempt:
            return
        if self._text and not self._terminal:
            self._line(SUPERSEDED, "dim")
        self._end_region()
        self._text = self._reasoning = ""
        self._call = ""

    def _event(self, type_: str, payload: Json) -> None:
        match type_:
            case "agent.started":
                self._line(f"{payload['agent']} · {payload['provider']}/{payload['model']}", "bold cyan")
                if payload.get("tools_unavailable"):
                    self._line(payload["tools_unavailable"], "yellow")
            case "approval.requested":
                self._asked(payload)
            case "approval.resolved":
                self._answered(payload)
            case "model.called":
                self._called(payload)
            case "model.retried":
                self._line(f"The model call failed and is tried again: {short(payload['error_message'])}", "yellow")
            case "tool.started":
                arguments = self._arguments.get(payload["call_id"], "")
                self._line(f"▸ {payload['tool']} {short(arguments, ARGUMENTS_WIDTH)}", "magenta")
            case "tool.finished":
                self._finished(payload)
            case "turn.stop_requested":
                self._line("Stop was asked for.", "yellow")
            case _:
                pass

    def _called(self, payload: Json) -> None:
        parts = payload["message"]["parts"]
        text = "".join(part["text"] for part in parts if part["kind"] == "text")
        streamed = self._text if payload["effect_id"] == self._call else ""
        self._end_region()
        if self._terminal:
            if text:
                self._console.print(printable(text), markup=False)
        elif text.startswith(streamed):
            # What a slow start or a lost stream left out.
            self._stream.write(printable(text[len(streamed) :]))
            if text and not text.endswith("\n"):
                self._stream.write("\n")
            self._stream.flush()
        elif text:
            self._line(f"{SUPERSEDED}\n{text}", "")
        for part in parts:
            if part["kind"] == "tool_call":
                self._arguments[part["call_id"]] = part["arguments"]["text"]
        self._call, self._text, self._reasoning = "", "", ""

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
        self._end_region()
        if self._text and not self._terminal and not self._text.endswith("\n"):
            self._stream.write("\n")
            self._text = ""
        self._console.print(printable(text), style=style or None, markup=False)

    def _refresh(self) -> None:
        from rich.live import Live
        from rich.text import Text

        height = max(3, self._console.size.height - 4)
        body = Text()
        if self._reasoning and not self._text:
            body.append("\n".join(printable(self._reasoning).splitlines()[-3:]), style="dim italic")
        body.append("\n".join(printable(self._text).splitlines()[-height:]))
        if self._live is None:
            self._live = Live(console=self._console, transient=True, refresh_per_second=12, auto_refresh=False)
            self._live.start()
        self._live.update(body, refresh=True)

    def _end_region(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
