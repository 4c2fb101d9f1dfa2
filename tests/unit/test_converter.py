"""What crosses to Temporal: bounded, encodable, and with the codes of domain errors."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.failure.v1 import Failure
from temporalio.exceptions import ApplicationError

from activities.boundary import application_error
from milepost.contracts.activities import (
    CONTRACTS,
    MAX_BOUNDARY_TEXT,
    AgentPlan,
    CallModelResult,
    LoopState,
    ModelOutcome,
    PlannedCall,
    PrepareResult,
    TurnInput,
    boundary_text,
    tool_label,
)
from milepost.domain.errors import MilepostError, ModelRateLimited, PayloadTooLarge, StorageUnavailable, TurnClaimed
from milepost.domain.tools import MAX_CALLS_PER_RESPONSE, Parallel
from milepost.temporal.converter import (
    DATA_CONVERTER,
    MAX_FAILURE_DEPTH,
    MAX_FAILURE_MESSAGE,
    MAX_FAILURE_STACK,
    MAX_PAYLOAD_BYTES,
)

MAX_EVENT_BYTES = 64 * 1024


def failure_of(error: BaseException) -> Failure:
    failure = Failure()
    DATA_CONVERTER.failure_converter.to_failure(error, DATA_CONVERTER.payload_converter, failure)
    return failure


def raised(texts: list[str], depth: int = 0) -> BaseException:
    """An error with a cause for each further text, each raised from deep inside."""
    try:
        if depth < 30:
            raise raised(texts, depth + 1)
        try:
            if len(texts) > 1:
                raise raised(texts[1:])
        except RuntimeError as cause:
            raise RuntimeError(texts[0]) from cause
        raise RuntimeError(texts[0])
    except RuntimeError as error:
        return error


@pytest.mark.parametrize("character", ["x", "é", "€", "🚧", "\ud800", "\0"])
@pytest.mark.parametrize("causes", [1, 8, 30])
def test_no_failure_can_make_an_oversize_event(character: str, causes: int) -> None:
    failure = failure_of(raised([character * 100_000] * causes))
    assert failure.ByteSize() < MAX_EVENT_BYTES - 8 * 1024
    depth, current = 1, failure
    while current.HasField("cause"):
        depth, current = depth + 1, current.cause
        assert len(current.message.encode()) <= MAX_FAILURE_MESSAGE
        assert len(current.stack_trace.encode()) <= MAX_FAILURE_STACK
    assert depth == min(causes, MAX_FAILURE_DEPTH)
    assert "bytes cut" in failure.message


def test_a_circle_of_causes_is_cut() -> None:
    one, two = RuntimeError("one"), RuntimeError("two")
    one.__cause__, two.__cause__ = two, one
    assert failure_of(one).ByteSize() < 1024


@given(st.text(st.characters(categories=["Cs", "Cc", "Lu", "So"]), max_size=50))
def test_any_text_can_be_the_message_of_an_error(text: str) -> None:
    failure = failure_of(ValueError(text))
    assert failure.application_failure_info.type == "ValueError"
    assert failure.message == boundary_text(text)


def test_a_domain_error_keeps_its_code_and_whether_a_retry_can_help() -> None:
    for error in (StorageUnavailable("x"), TurnClaimed("y"), PayloadTooLarge.of("bash", "command", 5, 4)):
        info = failure_of(error).application_failure_info
        assert (info.type, info.non_retryable) == (error.code, not error.retryable)


def test_a_retry_delay_and_finality_survive_odd_text() -> None:
    error = ApplicationError("half \ud800", type="odd", non_retryable=True)
    info = failure_of(error).application_failure_info
    assert (info.type, info.non_retryable) == ("odd", True)
    waiting = application_error(ModelRateLimited("slow \ud800", retry_after=7))
    assert waiting.next_retry_delay == timedelta(seconds=7)
    assert failure_of(waiting).application_failure_info.next_retry_delay.ToTimedelta() == timedelta(seconds=7)


def test_an_oversize_payload_is_refused_with_what_it_is_and_its_bytes() -> None:
    with pytest.raises(PayloadTooLarge) as refused:
        DATA_CONVERTER.payload_converter.to_payloads([CallModelResult(ModelOutcome.FAILED, "e", error="x" * 50_000)])
    assert "CallModelResult" in str(refused.value) and str(MAX_PAYLOAD_BYTES) in str(refused.value)
    assert not refused.value.retryable


@given(st.text(max_size=30) | st.sampled_from(["\x00" * 9_000, "🚧" * 9_000, "\ud800" * 9_000]))
def test_the_largest_results_fit(text: str) -> None:
    calls = tuple(
        PlannedCall(index, tool_label(text * 64), Parallel.EXCLUSIVE, "d" * 64, True, "f" * 64, 7200.0)
        for index in range(MAX_CALLS_PER_RESPONSE)
    )
    shown = boundary_text(text)
    assert len(shown) <= MAX_BOUNDARY_TEXT
    for value in (
        CallModelResult(ModelOutcome.ANSWERED, "e" * 64, calls=calls, text_digest="t" * 64),
        CallModelResult(ModelOutcome.FAILED, "e" * 64, error_code="c" * 64, error=shown),
        PrepareResult((), "q" * 200, "q" * 200, "c" * 64, shown),
    ):
        (payload,) = DATA_CONVERTER.payload_converter.to_payloads([value])
        (back,) = DATA_CONVERTER.payload_converter.from_payloads([payload], [type(value)])
        assert back == value


def test_a_handover_is_the_same_on_the_other_side() -> None:
    state = LoopState(1, 2, 3)
    state.guard.check("t", [], [])
    turn = TurnInput("t", "s", "i", "c", PrepareResult((AgentPlan("a", 3),), "q", "r"), state)
    (payload,) = DATA_CONVERTER.payload_converter.to_payloads([turn])
    assert DATA_CONVERTER.payload_converter.from_payloads([payload], [TurnInput]) == [turn]


def test_contracts_have_names_of_their_own_and_bounded_retries() -> None:
    assert len({contract.name for contract in CONTRACTS}) == len(CONTRACTS)
    for contract in CONTRACTS:
        # Only short ledger work, which is idempotent, is tried for ever.
        assert contract.local or contract.retry.maximum_attempts > 0
        assert contract.local or contract.heartbeat is not None


def test_boundary_text_of_every_domain_error_is_encodable() -> None:
    error = MilepostError("🚧" * MAX_BOUNDARY_TEXT * 2)
    assert len(application_error(error).message) == MAX_BOUNDARY_TEXT
