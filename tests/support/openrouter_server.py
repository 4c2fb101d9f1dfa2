"""A fake of OpenRouter: chat completions with comments, reasoning details and costs.

`Reply.extra`: `signature` (of the reasoning; default a true one, empty for none), `signature_pieces` (how many deltas
it comes in), `encrypted` (data of an encrypted detail after the text), `cost` (what is reported, in credits).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.support.openai_server import OpenAIServer
from tests.support.validators.openrouter import sign
from tests.support.wire_server import Reply, pieces


class OpenRouterServer(OpenAIServer):
    """Chat completions by way of somebody else."""

    format = "openrouter"

    def listed(self) -> Any:
        entries = [
            {
                "id": model,
                "context_length": 128_000,
                "architecture": {"input_modalities": ["text", "image"]},
                "supported_parameters": ["tools", "reasoning", "structured_outputs"],
            }
            for model in self.models
        ]
        return {"data": entries}

    def too_long(self) -> Reply:
        message = (
            "This endpoint's maximum context length is 128000 tokens. However, you requested about 140210 tokens "
            "(140210 of text input). Please reduce the length of either one."
        )
        return Reply(status=400, body=json.dumps({"error": {"message": message, "code": 400}}))

    def error_event(self) -> Any:
        return {
            "error": {"code": 502, "message": "the slot failed"},
            "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}],
        }

    def payloads(self, body: Any, reply: Reply) -> Iterator[Any]:
        plain = Reply(**{**vars(reply), "reasoning": ""})
        events = super().payloads(body, plain)
        first = next(events)
        # A comment that keeps the connection alive, as its own servers send while they wait.
        yield ": OPENROUTER PROCESSING\n\n" + self.frame({**first, "provider": "Fake"})
        for delta in _reasoning(reply):
            yield {**first, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for event in events:
            if event.get("usage") and "cost" in reply.extra:
                event = {**event, "usage": {**event["usage"], "cost": reply.extra["cost"], "is_byok": False}}
            yield event


def _reasoning(reply: Reply) -> Iterator[dict[str, Any]]:
    if not reply.reasoning:
        return
    shape = {"type": "reasoning.text", "format": "fake-v1", "index": 0}
    for piece in pieces(reply.reasoning, reply.piece):
        yield {"reasoning": piece, "reasoning_details": [{**shape, "text": piece}]}
    signature = reply.extra.get("signature", sign(reply.reasoning))
    size = max(-(-len(signature) // reply.extra.get("signature_pieces", 1)), 1)
    for piece in pieces(signature, size):
        yield {"content": "", "reasoning_details": [{**shape, "signature": piece}]}
    if data := reply.extra.get("encrypted"):
        yield {"content": "", "reasoning_details": [{"type": "reasoning.encrypted", "data": data, "index": 1}]}
