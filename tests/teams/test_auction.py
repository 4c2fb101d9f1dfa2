"""Bids by the formula of the design, and what they decide."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from milepost.domain.teams import Subtask
from milepost.engine.auction import Bidder, award, bid

SHELL = frozenset({"bash"})
TASK = Subtask(1, "t", "t", ("bash",))


@pytest.mark.parametrize(
    ("bidder", "expected"),
    [
        (Bidder("w", SHELL), 1_000_000),
        (Bidder("w", frozenset()), 0),
        (Bidder("w", SHELL, load=1), 900_000),
        (Bidder("w", SHELL, load=3), 700_000),
        (Bidder("w", SHELL, load=30), 700_000),
        (Bidder("w", SHELL, remaining=1001), 1_000_000),
        (Bidder("w", SHELL, remaining=1000), 850_000),
        (Bidder("w", SHELL, remaining=101), 850_000),
        (Bidder("w", SHELL, remaining=100), 700_000),
        (Bidder("w", SHELL, remaining=0, load=5), 400_000),
        (Bidder("w", SHELL, finished=9, succeeded=0), 1_000_000),
        (Bidder("w", SHELL, finished=10, succeeded=10), 1_100_000),
        (Bidder("w", SHELL, finished=10, succeeded=5), 1_000_000),
        (Bidder("w", SHELL, finished=20, succeeded=0), 900_000),
    ],
)
def test_bids(bidder: Bidder, expected: int) -> None:
    assert bid(bidder, TASK).millionths == expected


def test_homogeneous_bidders_share_the_work_and_the_seed_is_the_only_chance() -> None:
    bidders = [Bidder(f"w{n}", SHELL) for n in range(4)]
    wins: Counter[str] = Counter()
    for seed in range(400):
        (first,) = award("lead", [TASK], bidders, seed)
        assert award("lead", [TASK], bidders, seed) == (first,)
        assert first.tied == ("w0", "w1", "w2", "w3")
        wins[first.worker] += 1
    assert min(wins.values()) > 60, "ties are not decided by the order of the configuration"


def test_a_worker_that_fails_what_it_takes_on_loses_to_equal_ones() -> None:
    """A bid is computed: a worker can boast in its answers, and its record still moves its bid by 0.1 at most."""
    boastful, plain = Bidder("boastful", SHELL, finished=40, succeeded=4), Bidder("plain", SHELL)
    wins = Counter(award("lead", [TASK], [boastful, plain], seed)[0].worker for seed in range(50))
    assert wins["boastful"] == 0
    difference = bid(plain, TASK).millionths - bid(boastful, TASK).millionths
    assert 0 <= difference <= 100_000


def test_a_winner_leaves_the_pool_and_what_only_the_busy_can_do_waits() -> None:
    tasks = [Subtask(n, str(n), "x", ("bash",)) for n in (1, 2, 3)]
    bidders = [Bidder("a", SHELL), Bidder("b", SHELL), Bidder("c", SHELL, idle=False)]
    awards = award("lead", tasks, bidders, 1)
    assert [each.subtask for each in awards] == [1, 2]
    assert {each.worker for each in awards} == {"a", "b"}
    assert [each.agent for each in awards] == [f"lead/{each.worker}" for each in awards]


def test_an_ephemeral_worker_does_what_no_declared_one_can() -> None:
    tasks = [Subtask(4, "x", "x", ("fly",)), Subtask(5, "y", "y", ("bash",))]
    awards = award("lead", tasks, [Bidder("a", SHELL)], 1)
    assert [(each.agent, each.worker) for each in awards] == [("lead/+4", ""), ("lead/a", "a")]


def test_every_subtask_is_given_out_in_the_end() -> None:
    chance = random.Random(3)
    for _ in range(100):
        tasks = {n: Subtask(n, str(n), "x", ("bash",) if chance.random() < 0.7 else ()) for n in range(1, 9)}
        bidders = [Bidder(f"w{n}", SHELL if n % 2 else frozenset()) for n in range(chance.randint(0, 4))]
        for _ in range(9):
            for each in award("lead", list(tasks.values()), bidders, 7):
                del tasks[each.subtask]
        assert not tasks
