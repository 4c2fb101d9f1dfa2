"""A fake of Anthropic's messages API: faithful by default, misbehaving on request.

`Reply.extra`: `signature` (text, default a true one; empty for none), `signature_pieces` (how many deltas it comes in),
`redacted` (data of a redacted thinking block after the thinking), `input_at_start` (the input of a call comes whole,
with its beginning).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.support.validators.anthropic import sign
from tests.support.wire_server import Reply, Tokens, WireServer, pieces


class AnthropicServer(WireServer):
    """Messages."""

    format = "anthropic"
    call_path = "/messages"

    def listed(self) -> Any:
        return {"data": [{"type": "model", "id": model} for model in self.models], "has_more": False}

    def error(self, message: str, code: Any = None) -> Any:
        return {"type": "error", "error": {"type": code or "invalid_request_error", "message": message}}

    def too_long(self) -> Reply:
        return Reply(status=400, body=json.dumps(self.error("prompt is too long: 201130 tokens > 200000 maximum")))

    def error_event(self) -> Any:
        return self.error("the slot failed", "overloaded_error")

    def said(self, body: Any) -> str:
        content = body["messages"][-1]["content"] if body.get("messages") else []
        texts = [block["text"] for block in content if block["type"] == "text"]
        return texts[-1] if texts else "nothing"

    def presented_key(self, headers: Mapping[str, str]) -> str:
        return headers.get("x-api-key", "")

    def frame(self, payload: Any) -> str:
        kind = payload.get("type", "message") if isinstance(payload, dict) else "message"
        return f"event: {kind}\ndata: {json.dumps(payload)}\n\n"

    def last_frame(self, reply: Reply) -> str:
        return self.frame({"type": "message_stop"}) if reply.events is None else ""

    def payloads(self, body: Any, reply: Reply) -> Iterator[Any]:
        usage = reply.usage or _usage(reply.tokens or Tokens())
        first = {**usage, "output_tokens": 1} if reply.usage_at != "none" else None
        message = {"id": "msg_fake", "type": "message", "role": "assistant", "model": body["model"], "content": []}
        yield {"type": "message_start", "message": {**message, "stop_reason": None, "usage": first}}
        yield {"type": "ping"}
        yield from _blocks(reply)
        yield from _ends(reply, usage)


def _usage(tokens: Tokens) -> dict[str, Any]:
    usage: dict[str, Any] = {
        "input_tokens": tokens.input,
        "cache_creation_input_tokens": tokens.cache_write,
        "cache_read_input_tokens": tokens.cached,
        "output_tokens": tokens.output + tokens.reasoning,
    }
    if tokens.reasoning:
        usage["output_tokens_details"] = {"thinking_tokens": tokens.reasoning}
    return usage


def _ends(reply: Reply, usage: dict[str, Any]) -> Iterator[Any]:
    reason = reply.finish or ("refusal" if reply.refusal else "tool_use" if reply.calls else "end_turn")
    end: dict[str, Any] = {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}}
    if reply.refusal:
        end["delta"]["stop_details"] = {"type": "refusal", "explanation": reply.refusal}
    late = {"type": "message_delta", "delta": {}, "usage": usage}
    match reply.usage_at:
        case "none":
            yield end
        case "late":
            yield end
            yield late
        case "twice" | "each":
            yield late
            yield {**end, "usage": usage}
            yield late
        case _:
            yield {**end, "usage": usage}


def _blocks(reply: Reply) -> Iterator[Any]:
    """Content blocks one after the other; the calls in turns where they are interleaved."""
    number = 0
    for block in (_thinking(reply), _redacted(reply), _text(reply)):
        if block:
            yield from _numbered(block, number, reply)
            number += 1
    calls = [list(_numbered(_call(at, call, reply), number + at, reply)) for at, call in enumerate(reply.calls)]
    if reply.interleaved:
        longest = max((len(events) for events in calls), default=0)
        yield from (events[turn] for turn in range(longest) for events in calls if turn < len(events))
    else:
        yield from (event for events in calls for event in events)


def _numbered(block: list[dict[str, Any]], number: int, reply: Reply) -> Iterator[dict[str, Any]]:
    for event in [*block, {"type": "content_block_stop"}]:
        index = {"normal": {"index": number}, "zero": {"index": 0}, "none": {}}[reply.index]
        yield {**event, **index}


def _begun(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "content_block": {"type": kind, **more}}


def _piece(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "delta": {"type": kind, **more}}


def _thinking(reply: Reply) -> list[dict[str, Any]]:
    if not reply.reasoning:
        return []
    signature = reply.extra.get("signature", sign(reply.reasoning))
    size = max(-(-len(signature) // reply.extra.get("signature_pieces", 1)), 1)
    return [
        _begun("thinking", thinking="", signature=""),
        *(_piece("thinking_delta", thinking=text) for text in pieces(reply.reasoning, reply.piece)),
        *(_piece("signature_delta", signature=text) for text in pieces(signature, size)),
    ]


def _redacted(reply: Reply) -> list[dict[str, Any]]:
    data = reply.extra.get("redacted")
    return [_begun("redacted_thinking", data=data)] if data else []


def _text(reply: Reply) -> list[dict[str, Any]]:
    if not reply.text:
        return []
    return [_begun("text", text=""), *(_piece("text_delta", text=text) for text in pieces(reply.text, reply.piece))]


def _call(number: int, call: dict[str, Any], reply: Reply) -> list[dict[str, Any]]:
    arguments = call.get("arguments", "{}")
    ids = {"none": {}, "same": {"id": "toolu_0"}}.get(reply.ids, {"id": call.get("id", f"toolu_{number}abc")})
    begun = {} if not reply.extra.get("input_at_start") else json.loads(arguments)
    event = _begun("tool_use", **ids, name=call["name"], input=begun)
    if reply.extra.get("input_at_start"):
        return [event]
    sent = ["", *pieces(arguments, reply.piece)] if isinstance(arguments, str) else [arguments]
    return [event, *(_piece("input_json_delta", partial_json=text) for text in sent)]
