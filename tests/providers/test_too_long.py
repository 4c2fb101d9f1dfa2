"""How services say that a conversation is longer than the model takes: what is taken for it, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from milepost.domain.errors import ModelContextTooLong
from milepost.providers.connection import said
from milepost.providers.too_long import too_long
from tests.providers.conftest import Make, hear, request
from tests.providers.wires import WIRES
from tests.support.wire_server import Reply

SAID: list[tuple[int | None, Any]] = [
    # vLLM
    (400, {"object": "error", "message": "This model's maximum context length is 4096 tokens.", "code": 400}),
    # llama.cpp
    (400, {"error": {"code": 400, "message": "try again", "type": "exceed_context_size_error", "n_ctx": 4096}}),
    # Anthropic, the answer's share included, and a body over its limit
    (400, {"type": "error", "error": {"message": "input length and `max_tokens` exceed context limit: 1 + 2 > 2"}}),
    (413, {"type": "error", "error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}}),
    # Groq, OpenAI's responses inside a stream, LM Studio, xAI
    (400, {"error": {"message": "Please reduce the length of the messages or completion."}}),
    (None, {"error": {"code": "context_length_exceeded", "message": "Your input exceeds the context window."}}),
    (400, {"error": "Trying to keep the first 111490 tokens when context the overflows."}),
    (400, {"error": "This model's maximum prompt length is 131072 but the request contains 537812 tokens."}),
    # Gemini, in a list of one
    (400, [{"error": {"message": "The input token count exceeds the maximum number of tokens allowed (1048576)."}}]),
    (400, "prompt is too long"),
]
OTHERS: list[tuple[int | None, Any]] = [
    (429, {"error": {"code": "rate_limit_exceeded", "message": "maximum context length"}}),
    (400, {"error": {"message": "Invalid value for `max_tokens`: too large."}}),
    (400, {"error": {"type": "invalid_request_error", "message": "tool name is too long"}}),
    (403, {"error": {"code": "context_length_exceeded"}}),
    (400, None),
    (400, [1, 2]),
]


@pytest.mark.parametrize(("status", "body"), SAID)
def test_what_says_so(status: int | None, body: Any) -> None:
    assert too_long(status, body, said(body))


@pytest.mark.parametrize(("status", "body"), OTHERS)
def test_what_does_not(status: int | None, body: Any) -> None:
    assert not too_long(status, body, said(body))


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("openai", {"type": "response.failed", "response": {"error": {"code": "context_length_exceeded"}}}),
        ("openai", {"type": "error", "error": {"code": "context_length_exceeded", "message": "too much"}}),
        ("ollama", {"error": "the prompt exceeds the available context size (4096 tokens)"}),
        ("openai_compatible", {"error": {"code": "context_length_exceeded", "message": "too much"}}),
        ("anthropic", {"type": "error", "error": {"type": "request_too_large", "message": "too much"}}),
    ],
)
async def test_said_inside_a_stream(make_gateway: Make, name: str, event: dict[str, Any]) -> None:
    wire = next(wire for wire in WIRES if wire.name == name)
    server = wire.server().start()
    try:
        server.plan(Reply(events=[server.frame(event)]))
        with pytest.raises(ModelContextTooLong):
            await hear(make_gateway(wire.made(server)), request())
    finally:
        server.close()
