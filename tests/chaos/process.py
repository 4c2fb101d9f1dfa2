"""A process of Milepost, as its command runs it, with a trap in its ledger and with shorter times.

It is started from a fork server that has imported this module already (`processes.py`): importing costs far more than
all the work of such a process.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import sys
import threading
from dataclasses import dataclass, field, replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

# Everything that the commands import late: the fork server has it, its children need not load it again.
import activities.guard  # noqa: F401
import api.app
import api.server  # noqa: F401
import cli.commands.servers
import cli.main
import cli.serving
import cli.stack
import cli.working
import milepost.bootstrap.core
import milepost.engine.status
import milepost.providers.scripted.provider
import milepost.sandboxes.podman.provider
import milepost.services.dispatch
import milepost.services.effects
import milepost.services.reconcile
import milepost.storage.effects
import milepost.storage.outbox
import milepost.storage.turns
import milepost.temporal.dev_server
import milepost.temporal.starter
import milepost.tools
import workers.loops
import workers.process
import workers.runtime
from activities.tools import ToolActivities
from milepost.contracts import activities as contracts
from milepost.domain.effects import EffectClass
from milepost.domain.tools import BUILTIN_TOOL_POLICIES
from milepost.ports.ledger import Ledger, OutboxKind
from milepost.ports.notifier import Notifier
from milepost.services.turns import BeginTurn, TurnService, TurnView
from milepost.storage import open_ledger, tables
from tests.chaos.points import Boundary, Trap, TrappedLedger, When

RECOVERING_SECONDS = 3.0
"""What is 60 s in the product: after this time without a live worker no turn may be shown as `working`."""


@dataclass(frozen=True)
class Orders:
    """What to run: `command` of the command line on a data root, as another `release` if one is named, with the
    product's own times unless `shorten`. `off` names guarantees this process does not keep.

    - `fencing`: a call never finds what an earlier attempt left of it, and no late attempt is refused.
    - `fence`: no late attempt is refused.
    - `claim`: every workflow run may work on every turn.
    - `outbox`: who accepts a turn starts its workflow by itself, after the commit.
    """

    command: tuple[str, ...]
    home: Path
    config: Path
    log: Path
    off: frozenset[str] = frozenset()
    shorten: bool = True
    owner: int = field(default_factory=os.getpid)
    release: str = ""


def run(orders: Orders, wire: Connection) -> NoReturn:
    """Be the process."""
    _die_with(orders.owner)
    log = os.open(orders.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    for name in [name for name in os.environ if name.startswith("MILEPOST_")]:
        del os.environ[name]
    os.environ |= {"MILEPOST_HOME": str(orders.home), "MILEPOST_CONFIG": str(orders.config), "NO_COLOR": "1"}
    sys.argv = ["milepost", *orders.command]
    trap = Trap(wire)
    _declare()
    if orders.shorten:
        _shorten()
    _listen(trap, shorten=orders.shorten)
    if orders.release:
        _put("cli.stack.worker_settings", _of_release(cli.stack.worker_settings, orders.release))
    _switch_off(orders.off)
    cli.main.app()
    raise AssertionError("the command returned")


def _die_with(owner: int) -> None:
    """A test run that is killed leaves no processes behind, though their parent, the fork server, outlives it."""
    watched = os.pidfd_open(owner)

    def watch() -> None:
        select.select([watched], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def _put(target: str, value: object) -> None:
    mock.patch(target, value).start()


def _shorten() -> None:
    """Every time that a recovery waits for, so that a kill costs seconds. The order between them stays."""
    _put("activities.guard.HEARTBEAT_SECONDS", 0.7)
    for contract in (contracts.CALL_MODEL, contracts.RUN_TOOL, contracts.END_CALLS):
        object.__setattr__(contract, "heartbeat", timedelta(seconds=4))
        object.__setattr__(contract, "retry", replace(contract.retry, initial=timedelta(seconds=0.3)))
    _put("milepost.temporal.starter.TASK_TIMEOUT", timedelta(seconds=2))
    _put("milepost.temporal.starter.RPC_TIMEOUT", timedelta(seconds=2.5))
    _put("workers.runtime.STICKY_TIMEOUT", timedelta(seconds=1))
    _put("milepost.services.dispatch.LEASE_US", 3_000_000)
    _put("milepost.services.dispatch.RETRY_MAX_US", 1_000_000)
    _put("milepost.services.reconcile.LEASE_US", 4_000_000)
    _put("workers.loops.BEAT_SECONDS", 0.5)
    _put("workers.loops.BACKOFF_MAX_SECONDS", 1.0)
    _put("workers.process.LIVE_WORKER_US", int(RECOVERING_SECONDS * 1_000_000))
    _put("milepost.engine.status.RECOVERING_AFTER_US", int(RECOVERING_SECONDS * 1_000_000))


def _declare() -> None:
    """No built-in tool is at most once; here one is."""
    once = {
        name: replace(policy, effect_class=EffectClass.AT_MOST_ONCE)
        for name, policy in BUILTIN_TOOL_POLICIES.items()
        if name == "edit_file"
    }
    mock.patch.dict(BUILTIN_TOOL_POLICIES, once).start()


class _Starters:
    """The workflow starter of this process, for one that has no outbox."""

    found: Any = None


def _of_release(settings: Any, release: str) -> Any:
    return lambda *arguments, **named: replace(settings(*arguments, **named), build_id=release)


def _listen(trap: Trap, *, shorten: bool) -> None:
    async def trapped(url: str, notifier: Notifier, **more: Any) -> Ledger:
        return TrappedLedger(await open_ledger(url, notifier, **more), trap)

    class Announced(workers.process.WorkerProcess):
        def __init__(self, parts: Any, client: Any, starter: Any, *more: Any, **named: Any) -> None:
            _Starters.found = starter
            pace = {"reconcile_seconds": 1.0} if shorten else {}
            super().__init__(parts, client, starter, *more, **{**named, **pace})

        async def start(self) -> None:
            await super().start()
            trap.tell("ready")

    settle = ToolActivities._settle

    async def settling(tools: ToolActivities, call: Any, *more: Any) -> Any:
        trap.hold_at(When.WHILE, (Boundary.SETTLE_TOOL, call.spec.position))
        return await settle(tools, call, *more)

    _put("activities.tools.ToolActivities._settle", settling)
    _put("milepost.bootstrap.core.open_ledger", trapped)
    _put("workers.process.WorkerProcess", Announced)


def _switch_off(off: frozenset[str]) -> None:
    if "fence" in off:
        _put("milepost.storage.effects._check_settle", lambda *_: None)
    if "fencing" in off:
        _put("activities.tools.effect_id", lambda *_: secrets.token_hex(32))
        _put("milepost.storage.effects._check_settle", lambda *_: None)
    if "claim" in off:
        _put("milepost.storage.turns.SqlTurns.claim", _claim_anyway)
        _put("milepost.services.effects.require_claim", lambda tx, turn_id, _claim: tx.turns.get(turn_id))
    if "outbox" in off:
        _put("milepost.storage.outbox.SqlOutbox.add", _add_no_start(milepost.storage.outbox.SqlOutbox.add))
        _put("milepost.services.turns.TurnService.begin", _begin_and_start(TurnService.begin))


def _claim_anyway(turns: Any, turn_id: str, claim: str) -> Any:
    turns._conn.execute(tables.turns.update().where(tables.turns.c.turn_id == turn_id).values(claimed_run=claim))
    return turns.get(turn_id)


def _add_no_start(add: Any) -> Any:
    def body(outbox: Any, kind: OutboxKind, subject: str, at: int) -> None:
        if kind is not OutboxKind.START_TURN:
            add(outbox, kind, subject, at)

    return body


def _begin_and_start(begin: Any) -> Any:
    async def body(service: TurnService, request: BeginTurn) -> TurnView:
        view: TurnView = await begin(service, request)
        if view.created:
            await _Starters.found.start_turn(milepost.services.dispatch._start(view.turn, ""))
        return view

    return body
