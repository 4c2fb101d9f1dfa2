"""A running `milepost dev` as a test talks to it: over its socket, with its token."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx

from tests.cli.conftest import SECONDS, Milepost

API = "/api/v1"


class Instance:
    """An HTTP client of the instance. `heard` collects every answer that was got."""

    def __init__(self, milepost: Milepost) -> None:
        self.info: dict[str, Any] = json.loads((milepost.home / "instance.json").read_text())
        self.token = (milepost.home / "api.token").read_text().strip()
        self.heard: list[bytes] = []
        self._http = httpx.Client(
            transport=httpx.HTTPTransport(uds=self.info["socket"]),
            base_url="http://milepost",
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=SECONDS,
            trust_env=False,
        )

    def __enter__(self) -> Instance:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def call(self, method: str, path: str, **more: Any) -> httpx.Response:
        response = self._http.request(method, path, **more)
        self.heard.append(repr(response.headers).encode() + response.content)
        return response

    def get(self, path: str, **query: Any) -> Any:
        response = self.call("GET", API + path, params=query)
        assert response.is_success, response.text
        return response.json()

    def post(self, path: str, body: Any = None) -> Any:
        response = self.call("POST", API + path, json=body)
        assert response.is_success, response.text
        return response.json()

    def open(self, folder: object) -> str:
        return str(self.post("/sessions", {"workspace": str(folder)})["session_id"])

    def begin(self, session_id: str, text: str = "Go", **options: Any) -> str:
        return str(self.post(f"/sessions/{session_id}/turns", {"text": text, **options})["turn_id"])

    def turn(self, turn_id: str) -> Any:
        return self.get(f"/turns/{turn_id}")

    def until(self, turn_id: str, condition: Callable[[Any], object]) -> Any:
        """The turn, as soon as it meets the condition."""
        deadline = time.monotonic() + SECONDS
        while not condition(turn := self.turn(turn_id)):
            assert time.monotonic() < deadline, turn
            time.sleep(0.1)
        return turn

    def ended(self, turn_id: str) -> Any:
        return self.until(turn_id, lambda turn: turn["state"] != "running")

    def history(self, session_id: str) -> list[Any]:
        """The turns, newest first."""
        return list(self.get(f"/sessions/{session_id}/history")["turns"])

    def output(self, turn_id: str) -> str:
        """The text so far."""
        response = self.call("GET", f"{API}/turns/{turn_id}/output")
        assert response.is_success, response.text
        return response.text

    def first_text(self, session_id: str) -> str:
        """The first piece of an answer that streams in the Session."""
        with self._http.stream("GET", f"{API}/sessions/{session_id}/events") as response:
            for line in response.iter_lines():
                frame = json.loads(line.removeprefix("data:")) if line.startswith("data:") else {}
                if frame.get("type") == "delta":
                    return str(frame["data"]["text"])
        raise AssertionError("the stream ended without a delta")

    def follow(self, session_id: str, turn_id: str) -> list[Any]:
        """The frames of the live stream until the turn has ended."""
        query = {"until_turn": turn_id}
        with self._http.stream("GET", f"{API}/sessions/{session_id}/events", params=query) as response:
            lines = [line.removeprefix("data:") for line in response.iter_lines() if line.startswith("data:")]
        return [json.loads(line) for line in lines]
