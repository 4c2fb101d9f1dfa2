"""A fake of OpenAI's responses: faithful by default, misbehaving on request.

`Reply.extra`: `encrypted` (content of the reasoning item; default a true one, empty for none), `summary_parts` (how
many parts the summary has), `phase` (of the message), `silent` (no deltas: items come whole).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.support.validators.openai_responses import encrypt
from tests.support.wire_server import Reply, Tokens, WireServer, pieces

CUT = {"max_output_tokens", "content_filter"}


class ResponsesServer(WireServer):
    """Responses."""

    format = "openai_responses"
    call_path = "/responses"

    def listed(self) -> Any:
        return {"object": "list", "data": [{"id": model} for model in self.models]}

    def error_event(self) -> Any:
        return {"type": "error", "code": "server_error", "message": "the slot failed", "param": None}

    def said(self, body: Any) -> str:
        said = [item["content"] for item in body.get("input", []) if item.get("role") == "user"]
        texts = [part["text"] for part in said[-1] if part["type"] == "input_text"] if said else []
        return texts[-1] if texts else "nothing"

    def frame(self, payload: Any) -> str:
        kind = payload.get("type", "message") if isinstance(payload, dict) else "message"
        return f"event: {kind}\ndata: {json.dumps(payload)}\n\n"

    def payloads(self, body: Any, reply: Reply) -> Iterator[Any]:
        response = {"id": "resp_fake", "object": "response", "model": body["model"]}
        for kind in ("created", "in_progress"):
            yield {"type": f"response.{kind}", "response": {**response, "status": "in_progress", "usage": None}}
        output: list[dict[str, Any]] = []
        yield from _items(reply, output)
        reason = reply.finish or "completed"
        usage = None if reply.usage_at == "none" else reply.usage or _usage(reply.tokens or Tokens())
        ended: dict[str, Any] = {**response, "status": "completed", "output": output, "usage": usage}
        kind = "completed"
        if reason != "completed":
            kind = "incomplete"
            ended |= {"status": "incomplete", "incomplete_details": {"reason": reason}}
        yield {"type": f"response.{kind}", "response": ended}


def _usage(tokens: Tokens) -> dict[str, Any]:
    total_in, total_out = tokens.input + tokens.cached, tokens.output + tokens.reasoning
    return {
        "input_tokens": total_in,
        "input_tokens_details": {"cached_tokens": tokens.cached},
        "output_tokens": total_out,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": total_in + total_out,
    }


def _items(reply: Reply, output: list[dict[str, Any]]) -> Iterator[Any]:
    """Output items one after the other; the calls in turns where they are interleaved. `output` gets the whole ones."""
    number = 0
    for made in (_reasoning(reply), _message(reply)):
        if made is not None:
            yield from _numbered(made, number, reply)
            output.append(made[1])
            number += 1
    calls = [_call(at, call, reply) for at, call in enumerate(reply.calls)]
    output += [made[1] for made in calls]
    streams = [list(_numbered(made, number + at, reply)) for at, made in enumerate(calls)]
    if reply.interleaved:
        longest = max((len(events) for events in streams), default=0)
        yield from (events[turn] for turn in range(longest) for events in streams if turn < len(events))
    else:
        yield from (event for events in streams for event in events)


Made = tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]
"""The item as it begins, as it ends, and the events in between."""


def _numbered(made: Made, number: int, reply: Reply) -> Iterator[dict[str, Any]]:
    begun, ended, between = made
    index = {"normal": {"output_index": number}, "zero": {"output_index": 0}, "none": {}}[reply.index]
    yield {"type": "response.output_item.added", **index, "item": begun}
    for event in [] if reply.extra.get("silent") else between:
        yield {**event, **index, "item_id": begun["id"]}
    yield {"type": "response.output_item.done", **index, "item": ended}


def _reasoning(reply: Reply) -> Made | None:
    if not reply.reasoning:
        return None
    begun: dict[str, Any] = {"id": "rs_fake", "type": "reasoning", "summary": []}
    count = reply.extra.get("summary_parts", 1)
    size = max(-(-len(reply.reasoning) // count), 1)
    texts = list(pieces(reply.reasoning, size))
    summary = [{"type": "summary_text", "text": text} for text in texts]
    between = [
        {"type": "response.reasoning_summary_text.delta", "summary_index": at, "delta": piece}
        for at, text in enumerate(texts)
        for piece in pieces(text, reply.piece)
    ]
    content = reply.extra.get("encrypted", encrypt("rs_fake", summary))
    return begun, {**begun, "summary": summary, **({"encrypted_content": content} if content else {})}, between


def _message(reply: Reply) -> Made | None:
    if not reply.text and not reply.refusal:
        return None
    begun: dict[str, Any] = {"id": "msg_fake", "type": "message", "role": "assistant", "content": []}
    if "phase" in reply.extra:
        begun["phase"] = reply.extra["phase"]
    between: list[dict[str, Any]] = [
        {"type": "response.output_text.delta", "content_index": 0, "delta": piece, "logprobs": []}
        for piece in pieces(reply.text, reply.piece)
    ]
    content: list[dict[str, Any]] = (
        [{"type": "output_text", "text": reply.text, "annotations": []}] if reply.text else []
    )
    if reply.refusal:
        between.append({"type": "response.refusal.delta", "content_index": 1, "delta": reply.refusal})
        content.append({"type": "refusal", "refusal": reply.refusal})
    return {**begun, "status": "in_progress"}, {**begun, "status": "completed", "content": content}, between


def _call(number: int, call: dict[str, Any], reply: Reply) -> Made:
    arguments = call.get("arguments", "{}")
    sent = {"none": {}, "same": {"call_id": "call_0"}}.get(reply.ids, {"call_id": call.get("id", f"call_{number}abc")})
    begun = {"id": f"fc_{number}", "type": "function_call", **sent, "name": call["name"], "arguments": ""}
    between = [
        {"type": "response.function_call_arguments.delta", "delta": piece} for piece in pieces(arguments, reply.piece)
    ]
    between.append({"type": "response.function_call_arguments.done", "arguments": arguments})
    return {**begun, "status": "in_progress"}, {**begun, "status": "completed", "arguments": arguments}, between
