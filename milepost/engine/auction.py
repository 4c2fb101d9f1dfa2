"""Who does which subtask: the bids of a wave and what they decide. Pure; equal bids are decided by a recorded seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from milepost.domain.teams import Award, Bid, Subtask, ephemeral_part, worker_part

MILLION = 1_000_000
BASE = 400_000
MOST_FOR_LOAD = 300_000
MOST_FOR_BUDGET = 300_000
SOME_BUDGET = 150_000
PLENTY_OF_TOKENS = 1_000
FEW_TOKENS = 100
LOAD_SHARE = 100_000
"""What each subtask that a worker has in this turn costs it: load / 10."""

RECORD_WEIGHT = 200_000
RECORD_NEEDED = 10
"""Finished subtasks before a worker's record counts."""


@dataclass(frozen=True, slots=True)
class Bidder:
    """A declared worker as the auction sees it.

    `load`: subtasks awarded to it in this turn. `remaining`: tokens its budget leaves, None without a limit.
    `finished` and `succeeded` count its subtasks of all turns. `idle`: it works on nothing now.
    """

    worker: str
    tools: frozenset[str]
    load: int = 0
    remaining: int | None = None
    finished: int = 0
    succeeded: int = 0
    idle: bool = True


def bid(bidder: Bidder, subtask: Subtask) -> Bid:
    """What a worker offers: 0 without a needed tool, else by its load, its budget and its record."""
    if not set(subtask.tools) <= bidder.tools:
        return Bid(bidder.worker, 0, bidder.load)
    offer = BASE + MOST_FOR_LOAD - min(bidder.load * LOAD_SHARE, MOST_FOR_LOAD)
    if bidder.remaining is None or bidder.remaining > PLENTY_OF_TOKENS:
        offer += MOST_FOR_BUDGET
    elif bidder.remaining > FEW_TOKENS:
        offer += SOME_BUDGET
    if bidder.finished >= RECORD_NEEDED:
        # From -0.1 for one that never succeeded to +0.1 for one that always did.
        offer += bidder.succeeded * RECORD_WEIGHT // bidder.finished - RECORD_WEIGHT // 2
    return Bid(bidder.worker, max(offer, 1), bidder.load)


def award(coordinator: str, ready: Sequence[Subtask], bidders: Sequence[Bidder], seed: int) -> tuple[Award, ...]:
    """Hand out what can be worked on now, in the order of the plan.

    Each winner leaves the pool. A subtask that only busy workers can do waits; one that no declared worker can do gets
    an ephemeral one.
    """
    chance = random.Random(seed)  # noqa: S311
    free = [bidder for bidder in bidders if bidder.idle]
    awards: list[Award] = []
    for subtask in ready:
        bids = tuple(bid(bidder, subtask) for bidder in bidders)
        if not any(each.millionths for each in bids):
            part = ephemeral_part(coordinator, subtask.number)
            awards.append(Award(subtask.number, part, "", bids))
            continue
        pool = {bidder.worker for bidder in free}
        offers = [each for each in bids if each.millionths and each.worker in pool]
        if not offers:
            continue
        best = max(each.millionths for each in offers)
        tied = tuple(each.worker for each in offers if each.millionths == best)
        winner = tied[0] if len(tied) == 1 else chance.choice(tied)
        free = [bidder for bidder in free if bidder.worker != winner]
        part = worker_part(coordinator, winner)
        awards.append(Award(subtask.number, part, winner, bids, tied if len(tied) > 1 else ()))
    return tuple(awards)
