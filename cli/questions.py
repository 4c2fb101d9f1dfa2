"""What a turn waits for a person for, told from its frames."""

from __future__ import annotations

from cli.routes import Json

WAITS = "waiting_for_person"


class NeedsPerson(Exception):
    """The turn does nothing but wait for a person; `asked` are the open `approval.requested` payloads."""

    def __init__(self, asked: list[Json]) -> None:
        super().__init__("The turn waits for a person.")
        self.asked = asked


class Questions:
    """Keeps the open approvals of one turn and its calls at work."""

    def __init__(self) -> None:
        self._asked: dict[str, Json] = {}
        self._at_work: set[str] = set()
        self._status = ""

    @property
    def open(self) -> list[Json]:
        """Payloads of the questions nobody has answered, oldest first."""
        return list(self._asked.values())

    @property
    def only_waits(self) -> bool:
        """Whether nothing but an answer makes the turn go on."""
        return bool(self._asked) and not self._at_work and self._status == WAITS

    def frame(self, frame: Json) -> None:
        """Take note of one frame."""
        data = frame["data"]
        if frame["type"] in ("snapshot", "status"):
            active = data.get("active_turn")
            self._status = str(active["status"]) if active else ""
        elif frame["type"] == "event":
            self._event(data["type"], data["payload"])

    def _event(self, type_: str, payload: Json) -> None:
        match type_:
            case "approval.requested":
                self._asked[payload["approval_id"]] = payload
            case "approval.resolved":
                self._asked.pop(payload["approval_id"], None)
                self._status = ""
            case "tool.started":
                self._at_work.add(payload["effect_id"])
            case "tool.finished":
                self._at_work.discard(payload["effect_id"])
            case _:
                pass
