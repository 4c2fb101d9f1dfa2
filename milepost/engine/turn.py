"""The pure half of a turn: batches of tool calls, the loop guard, the next step."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from milepost.domain.tools import Parallel

SAME_CALL_LIMIT = 3
SAME_TEXT_LIMIT = 3


@dataclass(frozen=True, slots=True)
class CallShape:
    """What batching and the loop guard need to know of a call. Digests are of the exact bytes."""

    index: int
    tool: str
    parallel: Parallel
    input_digest: str
    malformed: bool = False


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
    return digest.hexdigest()


@dataclass(slots=True)
class LoopGuard:
    """Ends a turn that goes in circles. Holds digests and counts only; its size does not grow with the turn."""

    last_round: str = ""
    same_rounds: int = 0
    last_text: str = ""
    same_texts: int = 0
    malformed_rounds: int = 0

    def check(self, text_digest: str, calls: Sequence[CallShape], results: Sequence[str]) -> str | None:
        """Record a finished round; return the reason to end the turn, or None.

        `results` holds the result digest of each call, in the order of `calls`.
        """
        if calls and all(call.malformed for call in calls):
            self.malformed_rounds += 1
            if self.malformed_rounds >= 2:
                return "The model sent tool arguments that do not parse twice in a row."
        else:
            self.malformed_rounds = 0
        if calls:
            signature = _signature(calls, results)
            self.same_rounds = self.same_rounds + 1 if signature == self.last_round else 1
            self.last_round = signature
            if self.same_rounds >= SAME_CALL_LIMIT:
                tools = ", ".join(sorted({call.tool for call in calls}))
                return f"The model made the same call ({tools}) with the same result {SAME_CALL_LIMIT} times in a row."
        if text_digest:
            self.same_texts = self.same_texts + 1 if text_digest == self.last_text else 1
            self.last_text = text_digest
            if self.same_texts >= SAME_TEXT_LIMIT:
                return f"The model wrote the same text {SAME_TEXT_LIMIT} times in a row."
        return None
