"""Containers, volumes and remote sandboxes that nothing needs: of killed processes, or of Sessions that are gone."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.bootstrap.data_root import DataRoot
from milepost.bootstrap.sandboxes import open_sandboxes
from milepost.config.loading import Config
from milepost.domain.environments import EnvironmentState
from milepost.domain.errors import SandboxUnavailable, SessionNotFound
from milepost.domain.sessions import SessionStatus
from milepost.ports.ledger import LedgerTx
from milepost.ports.sandbox import REMOTE, Holding
from milepost.storage import open_ledger, open_notifier


@dataclass(frozen=True, slots=True)
class Sandboxes:
    """What was removed, or would be. `containers` are remote sandboxes too. `problem`: why nobody could be asked."""

    containers: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    problem: str | None = None


async def collect_sandboxes(config: Config, root: DataRoot, *, dry_run: bool) -> Sandboxes:
    """Remove what no Session needs; only what carries this instance's label is looked at. Raises StorageUnavailable."""
    url = config.database_url()
    notifier = await open_notifier(url)
    try:
        ledger = await open_ledger(url, notifier)
        try:
            async with open_sandboxes(config, root, ledger.instance_id) as provider:
                if provider is None:
                    return Sandboxes()
                found = await provider.holdings()
                unused = await ledger.read(lambda tx: [each for each in found if unneeded(tx, each)])
                # A volume cannot go before the container that has it mounted.
                for each in sorted(unused, key=lambda holding: holding.kind) if not dry_run else ():
                    await provider.discard(each)
        except SandboxUnavailable as error:
            return Sandboxes(problem=str(error))
        finally:
            await ledger.close()
    finally:
        await notifier.close()
    volumes = tuple(each.name for each in unused if each.kind == "volume")
    return Sandboxes(tuple(each.name for each in unused if each.kind != "volume"), volumes)


def unneeded(tx: LedgerTx, holding: Holding) -> bool:
    """Whether the Session is gone, or closed and at rest, or has gone on to another generation.

    What holds files that are nowhere else, as a remote sandbox does, is kept for a Session that may be opened again.
    """
    try:
        session = tx.sessions.get(holding.session_id)
    except SessionNotFound:
        return True
    environment = tx.environments.current(holding.session_id)
    current = 1 if environment is None else environment.generation
    if holding.kind in ("volume", REMOTE):
        return holding.generation != current
    if tx.turns.running(holding.session_id) is not None:
        return False
    if environment is not None and environment.state is EnvironmentState.PREPARING:
        return False
    return session.status is SessionStatus.CLOSED or not holding.running or holding.generation != current
