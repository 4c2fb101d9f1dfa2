"""A fake of Google's Gemini API: faithful by default, misbehaving on request.

`Reply.extra`: `signature_at` says where signatures are: `call` (default: the first call), `each` (every part), `end`
(an empty part of its own in a chunk of its own), `none`; without calls the default is the last part.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.validators.gemini import sign
from tests.support.wire_server import Received, Reply, Tokens, WireServer, pieces


@dataclass(frozen=True)
class Raw:
    """JSON that is sent as it is written."""

    text: str


class GeminiServer(WireServer):
    """`streamGenerateContent`."""

    format = "gemini"
    call_path = ":streamGenerateContent"
    prefix = "/v1beta"

    def listed(self) -> Any:
        methods = ["generateContent", "countTokens"]
        named = [{"name": f"models/{model}", "supportedGenerationMethods": methods} for model in self.models]
        return {"models": [*named, {"name": "models/embedder", "supportedGenerationMethods": ["embedContent"]}]}

    def error(self, message: str, code: Any = None) -> Any:
        return {"error": {"code": code or 400, "message": message, "status": "INVALID_ARGUMENT"}}

    def too_long(self) -> Reply:
        message = "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575)."
        return Reply(status=400, body=json.dumps(self.error(message)))

    def error_event(self) -> Any:
        return self.error("the slot failed", 503)

    def said(self, body: Any) -> str:
        texts = [part["text"] for content in body.get("contents", []) for part in content["parts"] if "text" in part]
        return texts[-1] if texts else "nothing"

    def model_of(self, request: Received) -> str:
        return request.path.rpartition("/")[2].partition(":")[0]

    def presented_key(self, headers: Mapping[str, str]) -> str:
        return headers.get("x-goog-api-key", "")

    def frame(self, payload: Any) -> str:
        raws: list[Raw] = []

        def placed(value: Raw) -> str:
            raws.append(value)
            return f"@raw{len(raws) - 1}@"

        text = json.dumps(payload, default=placed)
        for at, raw in enumerate(raws):
            text = text.replace(f'"@raw{at}@"', raw.text)
        return f"data: {text}\r\n\r\n"

    def payloads(self, body: Any, reply: Reply) -> Iterator[Any]:
        usage = reply.usage or _usage(reply.tokens or Tokens())
        for part in _parts(reply):
            yield _chunk([part], usage={**usage, "candidatesTokenCount": 1} if reply.usage_at == "each" else None)
        if reply.refusal:
            finish = {"finishReason": "SAFETY", "finishMessage": reply.refusal}
        else:
            finish = {"finishReason": reply.finish or "STOP"}
        yield _chunk([], usage=usage if reply.usage_at not in ("late", "none") else None, **finish)
        if reply.usage_at in ("late", "twice"):
            yield {"usageMetadata": usage, "modelVersion": "fake-small"}


def _chunk(parts: list[Any], usage: Any = None, **candidate: Any) -> dict[str, Any]:
    content = {"content": {"role": "model", "parts": parts}} if parts else {}
    chunk = {"candidates": [{**content, **candidate, "index": 0}], "modelVersion": "fake-small", "responseId": "r"}
    return {**chunk, "usageMetadata": usage} if usage else chunk


def _usage(tokens: Tokens) -> dict[str, Any]:
    prompt = tokens.input + tokens.cached
    usage: dict[str, Any] = {"promptTokenCount": prompt, "candidatesTokenCount": tokens.output}
    if tokens.cached:
        usage["cachedContentTokenCount"] = tokens.cached
    if tokens.reasoning:
        usage["thoughtsTokenCount"] = tokens.reasoning
    return {**usage, "totalTokenCount": prompt + tokens.output + tokens.reasoning}


def _parts(reply: Reply) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [
        *({"text": text, "thought": True} for text in pieces(reply.reasoning, reply.piece)),
        *({"text": text} for text in pieces(reply.text, reply.piece)),
        *({"functionCall": _call(number, call, reply)} for number, call in enumerate(reply.calls)),
    ]
    at = reply.extra.get("signature_at", "call" if reply.calls else "last")
    first_call = len(parts) - len(reply.calls)
    signed = {"call": [first_call], "last": [len(parts) - 1], "each": range(len(parts))}.get(at, [])
    for number in signed:
        if parts and number < len(parts):
            parts[number] = {**parts[number], "thoughtSignature": sign(str(number))}
    return [*parts, {"text": "", "thoughtSignature": sign("end")}] if at == "end" else parts


def _call(number: int, call: dict[str, Any], reply: Reply) -> dict[str, Any]:
    ids = {"none": {}, "same": {"id": "same"}}.get(reply.ids, {"id": call.get("id", f"id-{number}")})
    arguments = call.get("arguments", "{}")
    return {**ids, "name": call["name"], **({"args": Raw(arguments)} if arguments else {})}
