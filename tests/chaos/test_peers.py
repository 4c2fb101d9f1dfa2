"""A bounded part of the kills around tools and hooks of the user's own (`python -m tests.chaos.peers` is the whole)."""

from __future__ import annotations

import pytest

from milepost.domain.effects import EffectState
from tests.chaos.peers import Found, kills, may_be_unknown, moments
from tests.chaos.points import Boundary, Point, When

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

POINTS = [
    # Called and answered; dispatched, and nobody knows; a hook asked, whose word nobody has written down.
    Point(Boundary.SETTLE_TOOL, When.BEFORE, "tool.1.0"),
    Point(Boundary.ENTER_TOOL, When.AFTER, "tool.1.1"),
    Point(Boundary.SETTLE_TOOL, When.BEFORE, "hook.1.1.before.0"),
    # The hook's word is recorded, and the call is not dispatched.
    Point(Boundary.SETTLE_TOOL, When.AFTER, "hook.1.1.before.0"),
    # The call has its answer, and the hook that is to see it has not spoken.
    Point(Boundary.SETTLE_TOOL, When.BEFORE, "hook.1.1.after.0"),
]


def uncertain(found: Found) -> set[str]:
    return {effect.spec.position for effect in found.effects if effect.state is EffectState.UNCERTAIN}


def asked(found: Found, path: str, what: str) -> int:
    return sum(request.path == path and what in request.body.decode() for request in found.requests)


async def test_a_kill_doubles_no_call_and_keeps_every_key() -> None:
    all_found = await kills(POINTS, 1)
    told = [f"{found.point}: {fault}" for found in all_found for fault in found.faults]
    assert not told, "\n".join(told)
    keyed, once, asking, decided, scrubbing = all_found
    assert asked(keyed, "/book", "tool.1.0") == 1, "its answer was noted before the hook was asked"
    assert uncertain(once) == {"tool.1.1"} and asked(once, "/send", "tool.1.1") <= 1
    assert asked(asking, "/guard", "tool.1.1") == 2 and not uncertain(asking)
    assert asked(decided, "/guard", "tool.1.1") == 1, "a recorded word is not asked for again"
    assert asked(scrubbing, "/scrub", "tool.1.1") == 2 and not uncertain(scrubbing)
    assert asked(scrubbing, "/send", "tool.1.1") == 1


async def test_without_fencing_the_peer_sees_a_call_twice() -> None:
    """The control: what the test above asserts does not hold by itself."""
    (found,) = await kills([Point(Boundary.SETTLE_TOOL, When.BEFORE, "tool.1.1")], 1, frozenset({"fencing"}))
    assert any("was made 2 times" in fault for fault in found.faults), found.faults


def test_the_moments_are_all_there_are() -> None:
    assert len({str(point) for point in moments()}) == 24
    assert sum(map(may_be_unknown, moments())) == 1
