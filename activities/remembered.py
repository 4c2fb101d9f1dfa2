"""What the execution of turns needs of memory, built from its stores."""

from __future__ import annotations

from dataclasses import dataclass

from activities.conversation import Conversations
from activities.internal import InternalTool
from activities.memory_tools import MemoryTools
from activities.reminded import Reminded
from milepost.ports.ledger import Ledger
from milepost.ports.system import Clock
from milepost.services.contents import Contents
from milepost.services.memory_edits import MemoryEdits
from milepost.services.memory_stores import MemoryStores
from milepost.services.remembering import MemoryWriter
from milepost.services.reminding import Reminders


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Without stores there is no memory: agents are reminded of nothing and nothing is written."""

    reminded: Reminded
    tools: dict[str, InternalTool]
    writer: MemoryWriter | None = None
    edits: MemoryEdits | None = None

    async def close(self) -> None:
        """Finish edits that nobody waits for."""
        if self.edits is not None:
            await self.edits.close()


def memory_parts(
    ledger: Ledger,
    clock: Clock,
    contents: Contents,
    conversations: Conversations,
    stores: MemoryStores | None,
    worker: str,
) -> MemoryParts:
    """Build them; `worker` names this process."""
    if stores is None:
        return MemoryParts(Reminded(conversations, contents, None), {})
    edits = stores.edits(ledger, clock)
    reminders = Reminders(ledger, clock, stores.block_service(ledger), stores.semantic)
    rebuild = stores.rebuild(ledger, contents)
    return MemoryParts(
        Reminded(conversations, contents, reminders),
        MemoryTools(ledger, clock, edits, stores.daily, stores.semantic).tools(),
        MemoryWriter(ledger, clock, contents, stores.daily, stores.semantic, rebuild, worker),
        edits,
    )
