"""A fake of Ollama's chat: lines of JSON, faithful by default, misbehaving on request.

`Reply.extra`: `capabilities` and `context` of what `/api/show` answers are set on the server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.support.wire_server import Received, Reply, Tokens, WireServer, pieces

_RAW = "__raw_arguments__"


class OllamaServer(WireServer):
    """Chats."""

    format = "ollama"
    call_path = "/api/chat"
    models_path = "/api/tags"
    prefix = ""
    content_type = "application/x-ndjson"
    capabilities: tuple[str, ...] = ("completion", "tools")
    context = 32_768

    def listed(self) -> Any:
        return {"models": [{"name": f"{model}:latest", "model": f"{model}:latest"} for model in self.models]}

    def other(self, request: Received) -> Any:
        if request.path != "/api/show":
            return None
        return {"capabilities": list(self.capabilities), "model_info": {"fake.context_length": self.context}}

    def error(self, message: str, code: Any = None) -> Any:
        return {"error": message}

    def too_long(self) -> Reply:
        message = "request (41210 tokens) exceeds the available context size (32768 tokens), try increasing it"
        return Reply(status=400, body=json.dumps(self.error(message)))

    def said(self, body: Any) -> str:
        said = [message["content"] for message in body.get("messages", []) if message["role"] == "user"]
        return said[-1] if said else "nothing"

    def frame(self, payload: Any) -> str:
        return json.dumps(payload) + "\n"

    def payloads(self, body: Any, reply: Reply) -> Iterator[Any]:
        def line(done: bool = False, **message: Any) -> dict[str, Any]:
            return {
                "model": body["model"],
                "created_at": "2026-01-01T00:00:00Z",
                "message": {"role": "assistant", "content": "", **message},
                "done": done,
            }

        for piece in pieces(reply.reasoning, reply.piece):
            yield line(thinking=piece)
        for piece in pieces(reply.text or reply.refusal, reply.piece):
            yield line(content=piece)
        for number, call in enumerate(reply.calls):
            ids = {"normal": {"id": call.get("id", f"call_{number}abc")}, "same": {"id": "call_0"}}.get(reply.ids, {})
            function = {"index": number, "name": call["name"], "arguments": _RAW}
            text = json.dumps(line(tool_calls=[{**ids, "function": function}]))
            # As a model wrote them: no number or escape of ours.
            yield text.replace(f'"{_RAW}"', str(call.get("arguments", "{}"))) + "\n"
        tokens = reply.tokens or Tokens()
        used = {"prompt_eval_count": tokens.input + tokens.cached, "eval_count": tokens.output + tokens.reasoning}
        yield {**line(True), "done_reason": reply.finish or "stop", **({} if reply.usage_at == "none" else used)}
