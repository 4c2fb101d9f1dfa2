"""A fake of Mistral's chat completions: faithful by default, misbehaving on request.

`Reply.extra`: `signature_pieces` (a signature for the thinking, in so many chunks), `arguments_object` (arguments as a
JSON object instead of its text), `whole_calls` (each call in one piece, as the service sends them).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.support.openai_server import OpenAIServer
from tests.support.validators.mistral import sign
from tests.support.wire_server import Reply, Tokens, pieces


class MistralServer(OpenAIServer):
    """Chat completions of Mistral's dialect."""

    format = "mistral"

    def listed(self) -> Any:
        can = {"completion_chat": True, "function_calling": True, "vision": False}
        return {"object": "list", "data": [{"id": model, "capabilities": can} for model in self.models]}

    def error(self, message: str, code: Any = None) -> Any:
        return {"object": "error", "message": message, "type": "invalid_request_error", "code": code or 3230}

    def too_long(self) -> Reply:
        message = (
            "Prompt contains 41210 tokens and 0 draft tokens, too large for model with 32768 maximum context length"
        )
        return Reply(status=400, body=json.dumps(self.error(message, 3051)))

    def error_event(self) -> Any:
        return self.error("the slot failed", 503)

    def payloads(self, body: Any, reply: Reply) -> Iterator[Any]:
        return _payloads(body, reply)


def _payloads(body: Any, reply: Reply) -> Iterator[Any]:
    usage = reply.usage or _usage(reply.tokens or Tokens())

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        head = {"id": "cmpl-fake", "object": "chat.completion.chunk", "created": 1, "model": body.get("model")}
        reported = {"usage": usage} if reply.usage_at == "each" else {}
        return {**head, "choices": [choice], **reported, **more}

    yield chunk({"role": "assistant", "content": ""})
    for content in _thinking(reply):
        yield chunk({"content": [content]})
    for text in pieces(reply.text, reply.piece):
        yield chunk({"content": [{"type": "text", "text": text}] if reply.reasoning else text})
    for delta in _call_deltas(reply):
        yield chunk({"tool_calls": [delta]})
    finish = reply.finish or ("tool_calls" if reply.calls else "stop")
    yield chunk({"content": ""}, finish, **({} if reply.usage_at in ("late", "none") else {"usage": usage}))
    if reply.usage_at in ("late", "twice"):
        yield {"id": "cmpl-fake", "object": "chat.completion.chunk", "model": "m", "choices": [], "usage": usage}


def _usage(tokens: Tokens) -> dict[str, Any]:
    prompt, completion = tokens.input + tokens.cached, tokens.output + tokens.reasoning
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if tokens.cached:
        usage["prompt_tokens_details"] = {"cached_tokens": tokens.cached}
    if tokens.reasoning:
        usage["completion_tokens_details"] = {"reasoning_tokens": tokens.reasoning}
    return usage


def _thinking(reply: Reply) -> Iterator[dict[str, Any]]:
    for text in pieces(reply.reasoning, reply.piece):
        yield {"type": "thinking", "thinking": [{"type": "text", "text": text}]}
    if count := reply.extra.get("signature_pieces"):
        signature = sign(reply.reasoning)
        for piece in pieces(signature, -(-len(signature) // count)):
            yield {"type": "thinking", "thinking": [], "signature": piece}


def _call_deltas(reply: Reply) -> list[dict[str, Any]]:
    streams = [list(_deltas_of(number, call, reply)) for number, call in enumerate(reply.calls)]
    if not reply.interleaved:
        return [delta for stream in streams for delta in stream]
    longest = max((len(stream) for stream in streams), default=0)
    return [stream[turn] for turn in range(longest) for stream in streams if turn < len(stream)]


def _deltas_of(number: int, call: dict[str, Any], reply: Reply) -> Iterator[dict[str, Any]]:
    arguments = call.get("arguments", "{}")
    whole = reply.extra.get("whole_calls")
    sent: list[Any] = [arguments] if whole else ["", *pieces(arguments, reply.piece)]
    if reply.extra.get("arguments_object"):
        sent = [json.loads(arguments)]
    for turn, piece in enumerate(sent):
        delta: dict[str, Any] = {"function": {"name": call["name"] if turn == 0 else "", "arguments": piece}}
        if reply.index != "none":
            delta["index"] = 0 if reply.index == "zero" else number
        own = call.get("id", f"call{number}abcd"[:9])
        if reply.ids == "every_chunk" or (turn == 0 and reply.ids == "normal"):
            delta["id"] = own
        elif turn == 0:
            delta["id"] = {"same": "callcall0", "none": "null"}.get(reply.ids, own)
        yield delta
