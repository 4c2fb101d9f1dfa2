"""A fake OpenAI-compatible server with its own wire code: faithful by default, misbehaving on request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.support.wire_server import MODELS, Received, Reply, Tokens, WireServer, pieces

__all__ = ["MODELS", "OpenAIServer", "Received", "Reply", "Tokens"]


class OpenAIServer(WireServer):
    """Chat completions."""

    format = "openai_chat"
    call_path = "/chat/completions"

    def listed(self) -> Any:
        return {"object": "list", "data": [{"id": model} for model in self.models]}

    def said(self, body: Any) -> str:
        messages = body.get("messages", []) if isinstance(body, dict) else []
        said = [message.get("content") for message in messages if message.get("role") == "user"]
        last = said[-1] if said else "nothing"
        return last if isinstance(last, str) else str(last[0].get("text", "an image"))

    def payloads(self, body: Any, reply: Reply) -> Iterator[Any]:
        return _payloads(body, reply)

    def last_frame(self, reply: Reply) -> str:
        return "data: [DONE]\n\n"


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


def _payloads(body: Any, reply: Reply) -> Iterator[Any]:
    usage = reply.usage or _usage(reply.tokens or Tokens())

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        whole: dict[str, Any] = {
            "id": "chatcmpl-fake",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": body.get("model"),
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        }
        if reply.usage_at == "each" or (reply.usage_at in ("finish", "twice") and finish):
            whole["usage"] = usage
        return whole

    yield chunk({"role": "assistant", "content": None if reply.null_first else ""})
    for piece in pieces(reply.reasoning, reply.piece):
        yield chunk({reply.reasoning_field: piece})
    for piece in pieces(reply.text, reply.piece):
        yield chunk({"content": piece})
    if reply.refusal:
        yield chunk({"refusal": reply.refusal})
    for delta in _call_deltas(reply):
        yield chunk({"tool_calls": [delta]})
    yield chunk({}, reply.finish or ("tool_calls" if reply.calls else "stop"))
    asked = (body.get("stream_options") or {}).get("include_usage")
    if asked and reply.usage_at in ("end", "twice"):
        yield {"id": "chatcmpl-fake", "object": "chat.completion.chunk", "created": 1, "choices": [], "usage": usage}


def _call_deltas(reply: Reply) -> list[dict[str, Any]]:
    streams = [list(_deltas_of(number, call, reply)) for number, call in enumerate(reply.calls)]
    if not reply.interleaved:
        return [delta for stream in streams for delta in stream]
    longest = max((len(stream) for stream in streams), default=0)
    return [stream[turn] for turn in range(longest) for stream in streams if turn < len(stream)]


def _deltas_of(number: int, call: dict[str, Any], reply: Reply) -> Iterator[dict[str, Any]]:
    arguments = call.get("arguments", "{}")
    parts = ["", *pieces(arguments, reply.piece)] if isinstance(arguments, str) else [arguments]
    for turn, piece in enumerate(parts):
        delta: dict[str, Any] = {"function": {"arguments": piece}}
        if reply.index != "none":
            delta["index"] = 0 if reply.index == "zero" else number
        own = call.get("id", f"call_{number}abc")
        match reply.ids:
            case "normal" if turn == 0:
                delta["id"] = own
            case "same" if turn == 0:
                delta["id"] = "call_0"
            case "every_chunk":
                delta["id"] = own
            case "churn":
                delta["id"] = f"{own}-{turn}"
        if turn == 0 or reply.name_in_each:
            delta["type"] = "function"
            delta["function"]["name"] = call["name"]
        yield delta
