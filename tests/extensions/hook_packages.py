"""Hooks that an installed package would bring."""

from __future__ import annotations

import time

from milepost.ports.hooks import ALLOW, Decision, Hook, HookCall, deny, rewrite_arguments, rewrite_output

calls: list[HookCall] = []


def _audit(call: HookCall) -> None:
    calls.append(call)
    call.arguments["command"] = "changed in place"  # type: ignore[index]


async def _guard(call: HookCall) -> Decision:
    return deny("no force") if "--force" in str(call.arguments) else ALLOW


def _limit(call: HookCall) -> Decision:
    return rewrite_arguments({**call.arguments, "timeout": 5})


def _scrub(call: HookCall) -> Decision:
    return rewrite_output((call.output or "").replace("4711", "****"))


def _fail(call: HookCall) -> Decision:
    raise LookupError("no such list")


audit, guard, limit, scrub, fail = Hook(_audit), Hook(_guard), Hook(_limit), Hook(_scrub), Hook(_fail)
slow = Hook(lambda call: time.sleep(1))
number = Hook(lambda call: 7)  # type: ignore[arg-type,return-value]
empty = Hook(lambda call: Decision(ALLOW.verdict.REWRITE))
word = Hook(lambda call: Decision("deny", "no"))  # type: ignore[arg-type]
maybe = Hook(lambda call: Decision("maybe"))  # type: ignore[arg-type]
nothing_said = Hook(lambda call: Decision(None))  # type: ignore[arg-type]
