"""Whether Sessions' sandboxes can be reached from this process."""

from __future__ import annotations

from milepost.contracts.naming import sandbox_queue
from milepost.domain.errors import SandboxUnavailable
from milepost.domain.sessions import Session
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.ports.system import Clock

SANDBOX_QUEUES = sandbox_queue("")
LIVE_WORKER_US = 60_000_000


async def reachable(ledger: Ledger, clock: Clock, host: str, session_id: str) -> Session:
    """The Session, if its sandbox is on this host. Raises SessionNotFound, SandboxUnavailable (names the right one)."""
    since = clock.now() - LIVE_WORKER_US

    def body(tx: LedgerTx) -> tuple[Session, list[str]]:
        queues = {queue for beat in tx.workers.live(since) for queue in beat.queues}
        return tx.sessions.get(session_id), sorted(queue for queue in queues if queue.startswith(SANDBOX_QUEUES))

    session, queues = await ledger.read(body)
    if queues and sandbox_queue(host) not in queues:
        hosts = ", ".join(queue.removeprefix(SANDBOX_QUEUES) for queue in queues)
        raise SandboxUnavailable(
            f"This is {host}, where no worker keeps sandboxes.", fix=f"Use an API on a host that has: {hosts}"
        )
    return session
