"""What every provider type does, whatever its wire format: the same cases over the fake of each."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from milepost.domain.content import Content
from milepost.domain.errors import (
    ModelAnswerMalformed,
    ModelAnswerTooLarge,
    ModelContextTooLong,
    ModelError,
    ModelIncomplete,
    ModelRateLimited,
    ModelRequestRejected,
    ModelTimedOut,
    ModelUnauthorized,
    ModelUnavailable,
)
from milepost.domain.messages import AssistantMessage, FinishReason, ReasoningPart, Sampling, TextPart, ToolMessage
from milepost.domain.prices import ModelPrices, TokenPrices
from milepost.domain.providers import ModelLimits, ModelTimeouts
from milepost.domain.usage import UNKNOWN_USAGE, Cost, Usage
from milepost.providers.gateway import Gateway
from tests.providers.conftest import KEY, READ, Heard, Make, Secrets, hear, request, user
from tests.providers.wires import WIRE_PARAMETERS, Wire
from tests.support.wire_server import Reply, Tokens, WireServer

Endpoint = Callable[..., Gateway]

# Spaces, order, numbers and escapes that a JSON library would write otherwise.
RAW_A = '{"path": "a.txt",  "n":1.0, "e":1E2, "s":"\\u00fc", "b":123456789012345678901}'
LONG = "one two three four five"
RAW_B = '{ "path":"b.txt" }'
CALLS = [{"name": "read_file", "arguments": RAW_A}, {"name": "read_file", "arguments": RAW_B}]
CALL = CALLS[:1]


@pytest.fixture(params=WIRE_PARAMETERS)
def wire(request: pytest.FixtureRequest) -> Wire:
    found: Wire = request.param
    return found


@pytest.fixture
def server(wire: Wire) -> Iterator[WireServer]:
    made = wire.server().start()
    yield made
    made.close()


@pytest.fixture
def fake(wire: Wire, server: WireServer, make_gateway: Make) -> Endpoint:
    """A gateway with one provider 'fake'; keyword arguments change its configuration."""
    return lambda **changes: make_gateway(wire.made(server, **changes))


def arguments(heard: Heard) -> list[str]:
    return [call.arguments.text for call in heard.done.message.calls]


# --- what comes ---


async def test_text_and_reasoning_stream_in_pieces_and_equal_the_answer(fake: Endpoint, server: WireServer) -> None:
    text, thought = "Grüße, 世界!\u2028\u0085 \n" * 5, "First I think. " * 3
    server.plan(Reply(text=text, reasoning=thought))
    heard = await hear(fake(), request())
    assert (heard.text, heard.reasoning) == (text, thought)
    assert len(heard.items) > 10
    parts = heard.done.message.parts
    # One part of each kind, or more where the service signs parts.
    assert "".join(part.text for part in parts if isinstance(part, ReasoningPart)) == thought
    assert "".join(part.text for part in parts if isinstance(part, TextPart)) == text
    assert isinstance(parts[0], ReasoningPart) and len(parts) <= 3
    assert heard.done.finish is FinishReason.STOP
    assert heard.done.model == "fake-small"
    assert heard.done.diagnostics == ()


async def test_an_endpoint_that_takes_an_idempotency_key_gets_the_same_one_at_each_try(
    fake: Endpoint, server: WireServer
) -> None:
    server.plan(*(Reply(text="x") for _ in range(3)))
    gateway = fake(idempotency_header="X-Idempotency-Key")
    await hear(gateway, request(idempotency_key="call-7"))
    await hear(gateway, request(idempotency_key="call-7", attempt=2))
    assert [sent.headers.get("x-idempotency-key") for sent in server.requests] == ["call-7", "call-7"]
    await hear(fake(), request(idempotency_key="call-7"))
    assert "call-7" not in str(server.requests[-1].headers), "nobody else gets one"


async def test_usage_is_what_the_service_bills(wire: Wire, fake: Endpoint, server: WireServer) -> None:
    tokens = [Tokens(), Tokens(100, 64, 7, 0), Tokens(10, 0, 12, 40), Tokens(0, 50, 1, 1)]
    server.plan(*(Reply(text="x", reasoning="y", tokens=each) for each in tokens))
    gateway = fake()
    for each in tokens:
        usage = (await hear(gateway, request())).done.usage
        assert usage == wire.counts(each)
    assert [line.tokens for line in server.billed] == tokens


async def test_usage_counts_once_wherever_it_is_reported(wire: Wire, fake: Endpoint, server: WireServer) -> None:
    gateway = fake()
    for usage_at in wire.usages:
        server.plan(Reply(text="some text", usage_at=usage_at))
        assert (await hear(gateway, request())).done.usage == Usage(11, output_tokens=7), usage_at


async def test_missing_usage_is_unknown_not_zero(fake: Endpoint, server: WireServer) -> None:
    server.plan(Reply(text="some text", usage_at="none"))
    done = (await hear(fake(), request())).done
    assert not done.usage.complete
    assert "usage" in done.diagnostics[-1]


async def test_what_a_session_costs_is_what_the_service_bills(wire: Wire, fake: Endpoint, server: WireServer) -> None:
    """Exactly, with each class at a price of its own where the service counts it apart; a cut answer is a subtotal."""
    tokens = [Tokens(1200, 800, 90, 40), Tokens(7, 0, 3, 0), Tokens(0, 5000, 1, 900), Tokens(11, 3, 7, 0)]
    if wire.name == "anthropic":
        tokens.append(Tokens(3, 100, 5, 0, cache_write=4096))
    apart = wire.counts(Tokens(0, 1, 0, 1)) == Usage(0, 1, 0, 1)
    each = {"input": "3", "cached": "0.3" if apart else "3", "output": "15", "reasoning": "12" if apart else "15"}
    billed = {name: Decimal(price) for name, price in each.items()} | {"cache_write": Decimal("3.75")}
    prices = TokenPrices(
        billed["input"], billed["cached"], billed["output"], billed["reasoning"], billed["cache_write"]
    )
    server.plan(*(Reply(text="x", reasoning="y", calls=CALL, tokens=spent) for spent in tokens))
    gateway = fake()
    usage = Usage()
    for _ in tokens:
        usage += (await hear(gateway, request(tools=(READ,)))).done.usage
    assert ModelPrices("test", prices).cost(usage) == Cost(server.invoice({"fake-small": billed}) * 1_000_000)
    server.plan(Reply(text="one two three", fault="rst", fault_after=2))
    with pytest.raises(ModelIncomplete) as caught:
        await hear(gateway, request())
    assert caught.value.may_have_cost
    total = ModelPrices("test", prices).cost(usage + UNKNOWN_USAGE)
    assert not total.complete
    assert total.micros < server.invoice({"fake-small": billed}) * 1_000_000


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("stop", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("filter", FinishReason.CONTENT_FILTER),
        ("calls", FinishReason.STOP),
        ("?", FinishReason.OTHER),
    ],
)
async def test_finish_reasons(
    wire: Wire, fake: Endpoint, server: WireServer, word: str, expected: FinishReason
) -> None:
    if word != "?" and word not in wire.finishes:
        return
    server.plan(Reply(text="x", finish=wire.finishes.get(word, "SOMETHING_NEW")))
    done = (await hear(fake(), request())).done
    assert done.finish is expected
    said = word == "?" or (word == "calls" and wire.finishes["calls"] != wire.finishes["stop"])
    assert bool(done.diagnostics) == said or word == "filter"


async def test_a_refusal_is_no_answer(wire: Wire, fake: Endpoint, server: WireServer) -> None:
    if not wire.refuses:
        return
    server.plan(Reply(refusal="I cannot help with that."))
    done = (await hear(fake(), request())).done
    assert done.finish is FinishReason.CONTENT_FILTER
    assert "I cannot help" in done.diagnostics[0]


# --- what breaks ---


@pytest.mark.parametrize("fault", ["eof", "fin", "rst"])
async def test_a_cut_stream_is_never_an_answer(wire: Wire, fake: Endpoint, server: WireServer, fault: str) -> None:
    gateway = fake()
    whole = Reply(text="one two", reasoning="three", calls=CALL, piece=4)
    await hear(gateway, request())
    count = wire.events_to_finish(server, server.chats[0].body, whole)
    # The later ones tell the most: all there is but the finish reason.
    for after in {1, 2, count // 2, count - 2, count - 1}:
        server.plan(replace(whole, fault=fault, fault_after=after))
        with pytest.raises(ModelIncomplete) as caught:
            await hear(gateway, request(tools=(READ,)))
        assert caught.value.retryable


@pytest.mark.parametrize("fault", ["eof", "fin", "rst"])
async def test_a_stream_cut_before_its_first_event(fake: Endpoint, server: WireServer, fault: str) -> None:
    server.plan(Reply(text="x", fault=fault, fault_after=0))
    with pytest.raises((ModelIncomplete, ModelUnavailable)):
        await hear(fake(), request())


@pytest.mark.parametrize("fault", ["eof", "fin", "rst"])
async def test_a_cut_after_the_finish_reason_costs_the_usage_only(
    wire: Wire, fake: Endpoint, server: WireServer, fault: str
) -> None:
    gateway = fake()
    await hear(gateway, request())
    reply = Reply(text="whole", usage_at=wire.late)
    count = wire.events_to_finish(server, server.chats[0].body, reply)
    server.plan(replace(reply, fault=fault, fault_after=count))
    heard = await hear(gateway, request())
    assert (heard.done.finish, heard.done.message.text) == (FinishReason.STOP, "whole")
    assert heard.done.usage.complete is not bool(wire.late)


async def test_a_stall_after_the_finish_reason_ends_soon(
    wire: Wire, fake: Endpoint, server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milepost.providers.deadlines.TAIL_SECONDS", 0.2)
    gateway = fake()
    await hear(gateway, request())
    reply = Reply(text="whole", usage_at=wire.late)
    count = wire.events_to_finish(server, server.chats[0].body, reply)
    server.plan(replace(reply, fault="stall", fault_after=count))
    # Far less than the default limits, and than the server's own patience.
    done = (await asyncio.wait_for(hear(gateway, request()), 30)).done
    assert done.message.text == "whole" and done.usage.complete is not bool(wire.late)


async def early_finish(wire: Wire, server: WireServer, gateway: Gateway) -> tuple[list[Any], int]:
    """The events of an answer whose finish reason stands in its middle, and where."""
    await hear(gateway, request())
    body, reply = server.chats[0].body, Reply(text=LONG)
    events = list(server.payloads(body, reply))
    at = wire.events_to_finish(server, body, reply) - 1
    middle = at // 2
    return [*events[:middle], events[at], *events[middle:at]], middle


@pytest.mark.parametrize("fault", ["fin", "rst"])
async def test_a_cut_after_a_finish_reason_that_ended_nothing_is_no_answer(
    wire: Wire, fake: Endpoint, server: WireServer, fault: str
) -> None:
    events, middle = await early_finish(wire, server, gateway := fake())
    server.plan(Reply(events=events, fault=fault, fault_after=middle + 3))
    with pytest.raises(ModelIncomplete):
        await hear(gateway, request())
    server.plan(Reply(events=events))
    assert (await hear(gateway, request())).done.message.text == LONG


async def test_a_finish_reason_that_ended_nothing_leaves_the_answer_its_time(
    wire: Wire, fake: Endpoint, server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, middle = await early_finish(wire, server, gateway := fake())
    monkeypatch.setattr("milepost.providers.deadlines.TAIL_SECONDS", 0.2)
    texts = [event if isinstance(event, str) else server.frame(event) for event in events]
    # The reason and what follows it come in one piece, the rest long after what may follow a reason.
    server.plan(Reply(events=["".join(texts[: middle + 2]), "".join(texts[middle + 2 :])], delay=0.4))
    assert (await hear(gateway, request())).done.message.text == LONG


async def test_an_error_event_in_a_good_stream_is_an_error(fake: Endpoint, server: WireServer) -> None:
    server.plan(Reply(text="one two three four", fault="error_event"))
    with pytest.raises(ModelUnavailable, match="the slot failed"):
        await hear(fake(), request())


async def test_garbage_is_a_failure_of_the_provider(wire: Wire, fake: Endpoint, server: WireServer) -> None:
    gateway = fake()
    for event in (*wire.garbage, "data: \udcff\n\n"):
        server.plan(Reply(events=[event]))
        with pytest.raises((ModelUnavailable, ModelIncomplete, ModelAnswerMalformed)):
            await hear(gateway, request())


async def test_a_page_instead_of_a_stream_is_said(fake: Endpoint, server: WireServer) -> None:
    server.plan(Reply(events=["<html>Sign in</html>"], headers={"Content-Type": "text/html"}))
    with pytest.raises((ModelUnavailable, ModelIncomplete)):
        await hear(fake(), request())


STATUSES: list[tuple[int, dict[str, str], type[ModelError], float | None]] = [
    (429, {"Retry-After": "7"}, ModelRateLimited, 7.0),
    (429, {}, ModelRateLimited, None),
    (429, {"Retry-After": "-5"}, ModelRateLimited, None),
    (500, {}, ModelUnavailable, None),
    (502, {}, ModelUnavailable, None),
    (503, {"Retry-After": "2"}, ModelUnavailable, 2.0),
    (504, {}, ModelTimedOut, None),
    (529, {}, ModelUnavailable, None),
    (401, {}, ModelUnauthorized, None),
    (402, {}, ModelRequestRejected, None),
    (403, {}, ModelUnauthorized, None),
    (400, {}, ModelRequestRejected, None),
    (404, {}, ModelRequestRejected, None),
    (413, {}, ModelContextTooLong, None),
    (422, {}, ModelRequestRejected, None),
    (307, {"Location": "http://127.0.0.1:9/else"}, ModelRequestRejected, None),
]


async def test_failures_by_class(fake: Endpoint, server: WireServer) -> None:
    gateway = fake(api_key="env:KEY")
    for status, headers, kind, after in STATUSES:
        server.requests.clear()
        server.plan(Reply(status=status, headers=headers, body=json.dumps(server.error("it says so"))))
        with pytest.raises(ModelError) as caught:
            await hear(gateway, request())
        error = caught.value
        assert type(error) is kind, status
        assert (error.status, error.retry_after) == (status, after)
        assert "it says so" in error.message
        assert error.__cause__ is None
        assert len(server.requests) == 1, "nothing may be retried or followed here"


async def test_a_conversation_that_is_too_long_is_told_from_other_refusals(fake: Endpoint, server: WireServer) -> None:
    gateway = fake()
    server.plan(server.too_long())
    with pytest.raises(ModelContextTooLong) as caught:
        await hear(gateway, request())
    error = caught.value
    assert not error.retryable and not error.may_have_cost and error.other_route_may_help
    assert error.status == 400 and "longer than the model takes" in error.message and "context_tokens" in str(error)
    others = [
        (429, "Request too large for fake-small on tokens per min (TPM): the maximum context length is not the point"),
        (400, "max_tokens is too large: 999999. This model supports at most 128000 completion tokens."),
        (400, "The messages have a role that is too long to be one."),
        (401, "prompt is too long"),
    ]
    for status, message in others:
        server.plan(Reply(status=status, body=json.dumps(server.error(message))))
        with pytest.raises(ModelError) as caught_other:
            await hear(gateway, request())
        assert not isinstance(caught_other.value, ModelContextTooLong), (status, message)


async def test_a_refused_key_names_the_reference_and_never_the_key(fake: Endpoint, server: WireServer) -> None:
    server.key = "another"
    with pytest.raises(ModelUnauthorized) as caught:
        await hear(fake(api_key="env:KEY"), request())
    assert "env:KEY" in str(caught.value)
    assert KEY not in str(caught.value) and KEY[3:] not in str(caught.value)


@pytest.mark.parametrize("status", [400, 429, 500])
async def test_error_bodies_of_megabytes_are_bounded_and_free_of_secrets(
    fake: Endpoint, server: WireServer, status: int
) -> None:
    body = f"<html>{KEY} Bearer {KEY} sk-other-key-1234567 " + "\x1b[31mx\0é" * 1_000_000
    server.plan(Reply(status=status, body=body))
    gateway = fake(api_key="env:KEY")
    with pytest.raises(ModelError) as caught:
        await hear(gateway, request())
    text = str(caught.value)
    assert len(text.encode()) <= 8 * 1024
    assert KEY not in text and "sk-other" not in text
    assert "\x1b" not in text and "\0" not in text
    # The connection with the unread rest is given up; the next call gets its own.
    assert (await hear(gateway, request())).text == "You said: hello"
    assert [seen.connection for seen in server.chats] == [1, 2]


async def test_an_unreachable_provider(wire: Wire, server: WireServer, make_gateway: Make) -> None:
    gateway = make_gateway(wire.made(server, base_url="http://127.0.0.1:1/v1"))
    with pytest.raises(ModelUnavailable) as caught:
        await hear(gateway, request())
    assert "cannot be reached" in caught.value.message and "http://127.0.0.1:1/v1" in str(caught.value.fix)


# --- bounds ---


@pytest.mark.parametrize(
    ("timeouts", "fault_after", "field"),
    [
        (ModelTimeouts(first_event=0.2), 0, "timeouts.first_event"),
        (ModelTimeouts(idle=0.2), 3, "timeouts.idle"),
        (ModelTimeouts(total=0.3), 3, "timeouts.total"),
        (ModelTimeouts(total=0.3), 0, "timeouts.total"),
    ],
)
async def test_a_stall_is_ended_by_the_limit_it_passes(
    fake: Endpoint, server: WireServer, timeouts: ModelTimeouts, fault_after: int, field: str
) -> None:
    server.plan(Reply(text="one two three four", piece=2, fault="stall", fault_after=fault_after))
    with pytest.raises(ModelTimedOut) as caught:
        await hear(fake(timeouts=timeouts), request())
    assert caught.value.field == field
    # On a busy machine the limit may pass before anything was sent.
    await asyncio.to_thread(server.wait, lambda: all(seen.closed_at for seen in server.chats))


async def test_a_slow_stream_is_no_stall(fake: Endpoint, server: WireServer) -> None:
    # Each piece comes within the limits of idle and first event, all together take longer than either.
    server.plan(Reply(text="x" * 80, delay=0.06))
    heard = await hear(fake(timeouts=ModelTimeouts(first_event=0.5, idle=0.5)), request())
    assert heard.text == "x" * 80


@pytest.mark.parametrize(
    ("limits", "reply", "field"),
    [
        (ModelLimits(response_bytes=20_000), Reply(text="x" * 50_000, piece=10_000), "limits.response_bytes"),
        (ModelLimits(event_bytes=20_000), Reply(text="x" * 50_000, piece=50_000), "limits.event_bytes"),
        (ModelLimits(events=100), Reply(text="x" * 500, piece=1), "limits.events"),
    ],
)
async def test_bounds_on_bytes_and_events(
    fake: Endpoint, server: WireServer, limits: ModelLimits, reply: Reply, field: str
) -> None:
    # The server holds the connection open: only the client can end it.
    server.plan(replace(reply, fault="stall", fault_after=300))
    with pytest.raises(ModelAnswerTooLarge) as caught:
        await hear(fake(limits=limits), request())
    assert caught.value.field == field
    assert str(getattr(limits, field.partition(".")[2])) in str(caught.value)
    await asyncio.to_thread(server.wait, lambda: server.chats[0].closed_at)


async def test_a_request_of_megabytes_is_not_sent(fake: Endpoint, server: WireServer) -> None:
    gateway = fake(limits=ModelLimits(request_bytes=100_000))
    with pytest.raises(ModelRequestRejected) as caught:
        await hear(gateway, request(messages=[user("x" * 100_000)]))
    assert caught.value.field == "limits.request_bytes"
    assert "100,000" in caught.value.message
    assert not server.requests


async def test_an_event_of_megabytes_without_a_line_end_is_bounded(fake: Endpoint, server: WireServer) -> None:
    server.plan(Reply(events=["data: " + "x" * 3_000_000]))
    with pytest.raises(ModelAnswerTooLarge):
        await hear(fake(limits=ModelLimits(event_bytes=1_000_000)), request())


async def test_compressed_answers_are_refused(fake: Endpoint, server: WireServer) -> None:
    server.plan(Reply(text="x", headers={"Content-Encoding": "gzip"}))
    with pytest.raises(ModelRequestRejected, match="gzip"):
        await hear(fake(), request())


async def test_a_key_in_the_headers_of_an_answer_is_hidden(wire: Wire, server: WireServer, make_gateway: Make) -> None:
    key = "Team-0123456789ABCDEF-" + "Xy" * 20
    gateway = make_gateway(wire.made(server, api_key="env:KEY"), secrets=Secrets({"env:KEY": key}))
    said = []
    for name in ("Content-Type", "Content-Encoding", "Location"):
        for status in (200, 307):
            server.plan(Reply(text="x", status=status, headers={name: f"text/{key}"}))
            try:
                await hear(gateway, request())
            except ModelError as error:
                said.append(f"{error} {error.fix}".lower())
    assert len(said) >= 4 and not [text for text in said if key[:16].lower() in text]


@pytest.mark.parametrize("how", ["aclose", "cancel"])
async def test_ending_early_closes_the_connection_at_once(fake: Endpoint, server: WireServer, how: str) -> None:
    gateway = fake()
    server.plan(Reply(text="x" * 8_000, delay=0.01))
    first = asyncio.Event()

    async def consume() -> None:
        stream = gateway.stream(request())
        async for _ in stream:
            first.set()
            if how == "aclose":
                await stream.aclose()
                return

    task = asyncio.create_task(consume())
    await asyncio.wait_for(first.wait(), 10)
    ended = time.monotonic()
    if how == "cancel":
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        await task
    await asyncio.to_thread(server.wait, lambda: server.chats[0].closed_at)
    # Generous: without closing, the answer would go on for ten seconds.
    assert (server.chats[0].closed_at or 0) - ended < 5
    assert server.chats[0].events_sent < 900


async def test_connections_are_kept_and_a_changed_key_counts_from_the_next_call(
    wire: Wire, server: WireServer, make_gateway: Make
) -> None:
    secrets = Secrets({"env:KEY": "key-number-one"})
    gateway = make_gateway(wire.made(server, api_key="env:KEY"), secrets=secrets)
    await hear(gateway, request())
    secrets.values["env:KEY"] = "key-number-two"
    await hear(gateway, request())
    assert [server.presented_key(seen.headers) for seen in server.chats] == ["key-number-one", "key-number-two"]
    assert {seen.connection for seen in server.chats} == {1}


async def test_the_environment_adds_nothing_to_a_request(
    fake: Endpoint, server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for vendor in ("OPENAI", "ANTHROPIC", "GEMINI", "GOOGLE", "MISTRAL"):
        for name in ("API_KEY", "ORG_ID", "AUTH_TOKEN", "CUSTOM_HEADERS"):
            monkeypatch.setenv(f"{vendor}_{name}", "X-Leak: leak-me-not")
        monkeypatch.setenv(f"{vendor}_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    await hear(fake(headers={"X-Team": "docs"}), request())
    (seen,) = server.chats
    assert "leak-me-not" not in str(seen.headers)
    assert (seen.headers["user-agent"], seen.headers["x-team"]) == ("milepost", "docs")
    assert server.presented_key(seen.headers) == ""


# --- tool calls ---


async def test_calls_are_told_apart_however_they_are_numbered(wire: Wire, fake: Endpoint, server: WireServer) -> None:
    gateway = fake()
    for index, ids in itertools.product(wire.indexes, wire.ids):
        server.plan(Reply(text="I look.", calls=CALLS, index=index, ids=ids))
        heard = await hear(gateway, request(tools=(READ,)))
        assert arguments(heard) == [RAW_A, RAW_B], (index, ids)
        assert [call.tool for call in heard.done.message.calls] == ["read_file", "read_file"]
        assert len({call.call_id for call in heard.done.message.calls}) == 2
        assert (heard.done.finish, heard.text) == (FinishReason.TOOL_CALLS, "I look.")


async def test_interleaved_calls(wire: Wire, fake: Endpoint, server: WireServer) -> None:
    if wire.interleaves:
        server.plan(Reply(calls=CALLS, interleaved=True))
        assert arguments(await hear(fake(), request(tools=(READ,)))) == [RAW_A, RAW_B]


async def test_made_ids_are_the_same_in_the_next_attempt_and_recorded(
    wire: Wire, fake: Endpoint, server: WireServer
) -> None:
    gateway = fake()
    server.plan(*(Reply(calls=CALLS, ids="none") for _ in range(3)))
    first = await hear(gateway, request(tools=(READ,)))
    again = await hear(gateway, request(tools=(READ,), attempt=2))
    other = await hear(gateway, request(tools=(READ,), idempotency_key="key-2"))
    ids = [call.call_id for call in first.done.message.calls]
    assert [call.call_id for call in again.done.message.calls] == ids
    assert not set(ids) & {call.call_id for call in other.done.message.calls}
    noted = any("2 tool call(s) came without an id" in line for line in first.done.diagnostics)
    assert noted is wire.names_calls


async def test_stop_with_calls_means_calls(wire: Wire, fake: Endpoint, server: WireServer) -> None:
    server.plan(Reply(calls=CALLS, finish=wire.finishes["stop"]))
    assert (await hear(fake(), request(tools=(READ,)))).done.finish is FinishReason.TOOL_CALLS


@pytest.mark.parametrize("raw", ['{"path": "a', json.dumps('{"path": "a"}'), "[1]", "null", '{"a":1}{"b":2', "{}"])
async def test_arguments_stay_as_streamed_and_what_is_none_goes_back_wrapped(
    wire: Wire, fake: Endpoint, server: WireServer, raw: str
) -> None:
    if not wire.raw_arguments:
        return
    gateway = fake()
    server.plan(Reply(calls=[{"name": "read_file", "arguments": raw}]))
    heard = await hear(gateway, request(tools=(READ,)))
    assert arguments(heard) == [raw]
    await hear(gateway, request(tools=(READ,), messages=chat(heard)))


@pytest.mark.parametrize("word", ["length", "calls"])
async def test_calls_cut_by_the_token_limit_say_length(
    wire: Wire, fake: Endpoint, server: WireServer, word: str
) -> None:
    if not wire.raw_arguments or word not in wire.finishes:
        return
    calls = [{"name": "read_file", "arguments": '{"path": "a'}]
    for output, expected in ((2000, FinishReason.LENGTH), (1999, FinishReason.TOOL_CALLS)):
        server.plan(Reply(calls=calls, finish=wire.finishes[word], tokens=Tokens(5, 0, output)))
        heard = await hear(fake(), request(tools=(READ,), sampling=Sampling(max_tokens=2000)))
        assert heard.done.finish is (expected if word == "calls" else FinishReason.LENGTH)


async def test_calls_without_end_are_bounded(fake: Endpoint, server: WireServer) -> None:
    server.plan(Reply(calls=[{"name": "read_file", "arguments": "{}"}] * 1100))
    with pytest.raises(ModelAnswerTooLarge, match="1024 tool calls"):
        await hear(fake(), request(tools=(READ,)))


@pytest.mark.parametrize("text", ['{"name": "read_file", "arguments": {"path": "a"}}', 'I would call {"name": "x"}.'])
async def test_a_call_written_as_text_stays_text_and_is_said(
    wire: Wire, fake: Endpoint, server: WireServer, text: str
) -> None:
    if wire.recovers:
        return
    server.plan(Reply(text=text))
    done = (await hear(fake(), request(tools=(READ,)))).done
    assert (done.message.text, done.message.calls) == (text, ())
    assert any("as text" in line for line in done.diagnostics) is text.startswith("{")


# --- what goes back ---


def chat(*answers: Heard | AssistantMessage) -> list[Any]:
    """A conversation in which each answer is followed by its results."""
    messages: list[Any] = [user("hello")]
    for answer in answers:
        message = answer.done.message if isinstance(answer, Heard) else answer
        messages.append(message)
        messages.extend(ToolMessage(call.call_id, call.tool, Content("result")) for call in message.calls)
    return messages


async def test_arguments_go_back_byte_for_byte(fake: Endpoint, server: WireServer) -> None:
    gateway = fake()
    server.plan(Reply(text="I look.\n\n", reasoning="hm", calls=CALLS))
    first = await hear(gateway, request(tools=(READ,)))
    await hear(gateway, request(tools=(READ,), messages=chat(first)))
    for raw in (RAW_A, RAW_B):
        assert raw in server.chats[1].raw or json.dumps(raw)[1:-1] in server.chats[1].raw


async def test_a_prefix_stays_the_same_bytes_over_a_conversation(
    wire: Wire, fake: Endpoint, server: WireServer
) -> None:
    gateway = fake()
    messages: list[Any] = [user("hello")]
    for turn in range(12):
        ids = wire.ids[turn % len(wire.ids)]
        server.plan(Reply(reasoning=f"t{turn}", text=f"a{turn}", calls=CALLS if turn % 3 else [], ids=ids))
        heard = await hear(gateway, request(tools=(READ,), messages=messages, idempotency_key=f"k{turn}"))
        messages = [*messages, *chat(heard)[1:]]
        if not turn % 3:
            messages.append(user(f"question {turn}"))
    assert len(server.chats) == 12
    for shorter, longer in itertools.pairwise(server.chats):
        before, after = dict(shorter.body), dict(longer.body)
        said = [json.dumps(body.pop(wire.messages_key)) for body in (before, after)]
        assert said[1].startswith(said[0][:-1])
        assert json.dumps(before) == json.dumps(after)
        start = shorter.raw.index(f'"{wire.messages_key}"')
        assert shorter.raw[:start] == longer.raw[:start]


async def test_answers_without_secrets_stay_valid(fake: Endpoint, server: WireServer) -> None:
    """A key that reasoning repeats is hidden, so what was signed is no more what was sent: it is dropped whole."""
    gateway = fake(api_key="env:KEY")
    server.plan(Reply(reasoning=f"the key is {KEY}", text=f"it is {KEY}", calls=CALL))
    heard = await hear(gateway, request(tools=(READ,)))
    assert KEY not in repr(heard.items)
    await hear(gateway, request(tools=(READ,), messages=chat(heard)))
    assert KEY not in server.chats[1].raw
