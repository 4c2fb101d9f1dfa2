"""Kill writers of semantic memory before every statement: `python -m tests.memory.semantic_killed FOLDER WHAT`.

WHAT is `add`, `forget` or `reindex`. Each round works on a copy of a small memory of its own, `FOLDER/ROUND`, in a
process that dies one step later than the one before, until one lives to the end. Steps are statements and commits that
change something. Prints what was acknowledged as kept (`ROUND + ID`) or gone (`ROUND - ID`).
"""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from milepost.memory.semantic import IndexedMemory
from tests.memory.semantic_support import ANN, Embedding, fact, file_store

MAX_ROUNDS = 200


def _die_at(step: int) -> None:
    left = step

    def count(*args: Any) -> None:
        nonlocal left
        if len(args) > 2 and not args[2].startswith(("INSERT", "UPDATE", "DELETE")):
            return  # reading before a step is as good as reading before the next
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "before_cursor_execute", count)
    event.listen(Engine, "commit", count)


async def _fill(root: Path) -> None:
    memory = IndexedMemory(file_store(root), Embedding())
    await memory.add(ANN, [fact(number, f"Fact {number} is told.") for number in range(1, 4)])
    await memory.close()


async def _work(root: Path, what: str, number: int) -> None:
    memory = IndexedMemory(file_store(root), Embedding("other" if what == "reindex" else "test"))
    if what == "add":
        for item in await memory.add(ANN, [fact(8, "Something else is told."), fact(9, "Fact 1 is told.")]):
            _say(number, "+", item.record_id)
    elif what == "forget":
        for record in await memory.forget(ANN, ["e2"], "a person"):
            _say(number, "-", record)
    else:
        await memory.reindex(ANN)
    await memory.close()


def _say(number: int, sign: str, record: str) -> None:
    os.write(1, f"{number} {sign} {record}\n".encode())


def _apart(work: Coroutine[Any, Any, None], step: int = 0) -> bool:
    """Run in a process of its own; whether it lived to the end."""
    child = os.fork()
    if child == 0:
        if step:
            _die_at(step)
        asyncio.run(work)
        os._exit(0)
    work.close()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main(folder: Path, what: str) -> int:
    for module in ("numpy", "faiss"):
        importlib.import_module(module)  # once, not in each of the processes
    first = folder / "first"
    if not _apart(_fill(first)):
        return 2
    for number in range(1, MAX_ROUNDS):
        root = folder / str(number)
        shutil.copytree(first, root)
        if _apart(_work(root, what, number), number):
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
