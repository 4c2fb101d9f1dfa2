"""The pure half of a turn: batches of tool calls, the loop guard, the next step."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from milepost.domain.tools import Parallel

SAME_CALL_LIMIT = 3
SAME_TEXT_LIMIT = 3
REMEMBERED = 8
"""Rounds of calls among which a circle is found."""


@dataclass(frozen=True, slots=True)
class CallShape:
    """What batching and the loop guard need to know of a call. Digests are of the exact bytes.

    `fault` says of a malformed one whether it was `cut` off or is no `json`; else it is empty.
    """

    index: int
    tool: str
    parallel: Parallel
    input_digest: str
    malformed: bool = False
    fault: str = ""


C = TypeVar("C", bound=CallShape)


def batches(calls: Sequence[C]) -> list[list[C]]:
    """Split calls into batches that run one after another; the calls of a batch run together.

    `safe` neighbours share a batch; an `ordered` or `exclusive` call has one of its own, which keeps call order
    around it.
    """
    result: list[list[C]] = []
    open_batch: list[C] | None = None
    for call in calls:
        if call.parallel is Parallel.SAFE:
            if open_batch is None:
                open_batch = []
                result.append(open_batch)
            open_batch.append(call)
        else:
            open_batch = None
            result.append([call])
    return result


def _signature(calls: Sequence[CallShape], results: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for call, result in zip(calls, results, strict=True):
        for part in (call.tool, call.input_digest, result):
            digest.update(f"{len(part)}:{part}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:32]


@dataclass(slots=True)
class LoopGuard:
    """Ends a turn that goes in circles. Holds digests and counts only; its size does not grow with the turn.

    Rounds of calls are circles when the same one, with the same results, comes three times and nothing changed in
    between: not only in a row, but also among up to `REMEMBERED` other ones. What may have changed something is a
    round with a call that is not `safe` and that was not made with the same result since the last change.
    """

    seen: dict[str, int] = field(default_factory=dict)
    last_text: str = ""
    same_texts: int = 0
    last_failure: str = ""

    def check(self, text_digest: str, calls: Sequence[CallShape], results: Sequence[str]) -> str | None:
        """Record a finished round; return the reason to end the turn, or None.

        `results` holds the result digest of each call, in the order of `calls`.
        """
        failure = _failure(calls, results)
        if failure and failure == self.last_failure:
            tools = ", ".join(sorted({call.tool for call in calls}))
            return f"The model sent tool arguments that cannot be used twice in a row, with the same fault ({tools})."
        self.last_failure = failure
        if calls and self._repeated(calls, results) >= SAME_CALL_LIMIT:
            tools = ", ".join(sorted({call.tool for call in calls}))
            return (
                f"The model made the same call ({tools}) with the same result {SAME_CALL_LIMIT} times, and nothing "
                "changed in between."
            )
        if text_digest:
            self.same_texts = self.same_texts + 1 if text_digest == self.last_text else 1
            self.last_text = text_digest
            if self.same_texts >= SAME_TEXT_LIMIT:
                return f"The model wrote the same text {SAME_TEXT_LIMIT} times in a row."
        return None

    def _repeated(self, calls: Sequence[CallShape], results: Sequence[str]) -> int:
        """How often this round was there since the last change."""
        signature = _signature(calls, results)
        count = self.seen.pop(signature, 0) + 1
        if count == 1 and any(call.parallel is not Parallel.SAFE for call in calls):
            self.seen.clear()
        # The round that came last stands last, so the one that goes is the one that was not there for longest.
        self.seen[signature] = count
        while len(self.seen) > REMEMBERED:
            del self.seen[next(iter(self.seen))]
        return count


def _failure(calls: Sequence[CallShape], results: Sequence[str]) -> str:
    """What was wrong with a round of which no call could be run, as a digest; "" for any other.

    Arguments that were cut off, or that are no JSON, fail alike wherever that is; others by what the model was told.
    """
    if not calls or not all(call.malformed for call in calls):
        return ""
    faults = {
        f"{call.tool}:{call.fault or 'rejected'}:{'' if call.fault else result}"
        for call, result in zip(calls, results, strict=True)
    }
    return hashlib.sha256("\n".join(sorted(faults)).encode("utf-8", "surrogatepass")).hexdigest()
