"""Looking at every part when no instance runs, also when some of them are broken."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from milepost.bootstrap import checks
from milepost.bootstrap.core import is_empty, migrate, open_core
from milepost.bootstrap.data_root import DataRoot
from milepost.bootstrap.extensions import open_extensions
from milepost.bootstrap.sandboxes import open_sandboxes
from milepost.bootstrap.system import SystemClock
from milepost.bootstrap.temporal import embedded, expected_ui, lazy_check
from milepost.config.loading import Config
from milepost.domain.errors import InstanceLocked, MilepostError
from milepost.ports.ledger import LedgerTx
from milepost.providers.gateway import Gateway
from milepost.services.health import Check, HealthService

T = TypeVar("T")


class _BrokenLedger:
    """A ledger that cannot be opened; says why whenever it is asked."""

    instance_id = ""

    def __init__(self, reason: MilepostError) -> None:
        self._reason = reason

    async def write(self, body: Callable[[LedgerTx], T]) -> T:
        raise self._reason

    async def read(self, body: Callable[[LedgerTx], T]) -> T:
        raise self._reason

    async def check(self) -> None:
        raise self._reason

    async def close(self) -> None:
        return


async def examine(load: Callable[[], Config]) -> list[Check]:
    """All checks; a part that cannot even be opened is a failed check, and the others are looked at all the same."""
    try:
        config = load()
    except MilepostError as error:
        return [Check("configuration", False, error.message, error.fix)]
    root = DataRoot(config.data_root)
    part = temporal_part(config)
    async with contextlib.AsyncExitStack() as stack:
        try:
            await ensure_ledger(config, root)
            core = await stack.enter_async_context(open_core(config, root))
        except MilepostError as error:
            return await _without_ledger(config, root, part, error)
        return await core.services(part).health.doctor()


def temporal_part(config: Config) -> checks.TemporalPart:
    """What a process that does not run the embedded server knows of Temporal."""
    section = config.settings.temporal
    check = None if embedded(config) else lazy_check(config)
    return checks.TemporalPart(expected_ui(config), section.namespace, section.address, check)


async def ensure_ledger(config: Config, root: DataRoot) -> None:
    """Make an empty ledger where there is none yet. Raises StorageUnavailable."""
    root.prepare()
    if not await is_empty(config):
        return
    try:
        with root.lock("command"):
            await migrate(config, root)
    except InstanceLocked:
        # Its owner (maybe this very process) makes the ledger, or has made it since.
        await migrate(config, root)


async def _without_ledger(
    config: Config, root: DataRoot, part: checks.TemporalPart, reason: MilepostError
) -> list[Check]:
    gateway = Gateway(config.providers, config.secrets)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(gateway.close)
        sandboxes = await stack.enter_async_context(open_sandboxes(config, root, "doctor"))
        extensions = await stack.enter_async_context(open_extensions(config))
        ledger = _BrokenLedger(reason)
        parts = checks.Parts(config, root, ledger, SystemClock(), gateway, sandboxes, part, extensions, config.agents)
        return await HealthService(lambda: checks.functions(parts), frozenset()).doctor()
