"""Writes a checkpoint and kills itself at the step that is named: `FOLDER SEQ STEP COUNT`.

STEP is a call of the operating system, COUNT which one of them; the process dies right before it, or, with COUNT
negative, right after it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from milepost.domain.checkpoints import Checkpoint, Segment
from milepost.domain.content import Content
from milepost.domain.messages import UserMessage
from milepost.domain.usage import Usage
from milepost.ledger.checkpoint import segment_line, write_checkpoint
from milepost.memory.checkpoint_files import CheckpointFiles

KEY = "key"


def content(seq: int) -> bytes:
    """What a checkpoint at this position holds: three times what a buffer takes."""
    segment = Segment("turn", seq, 1, (UserMessage(Content(f"{seq} " * 10_000)),))
    return write_checkpoint(
        Checkpoint("ses", "agent", "", seq, "00" * 32, seq, Usage(), 0, (segment,)), [segment_line(segment)]
    )


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def _deadly(owner: Any, name: str, count: int) -> None:
    real: Callable[..., Any] = getattr(owner, name)
    done = 0

    def call(*args: Any, **more: Any) -> Any:
        nonlocal done
        done += 1
        if done == count:
            _die()
        result = real(*args, **more)
        if done == -count:
            _die()
        return result

    setattr(owner, name, call)


def main(folder: str, seq: str, step: str, count: str) -> None:
    if step == "half":
        real = os.fdopen

        def half(*args: Any, **more: Any) -> Any:
            file = real(*args, **more)
            if args[1] != "wb":
                return file

            class Half:
                def __enter__(self) -> Half:
                    return self

                def __exit__(self, *_: object) -> None:
                    file.close()

                def write(self, data: bytes) -> None:
                    file.write(data[: len(data) // 2])
                    file.flush()
                    _die()

            return Half()

        os.fdopen = half
    elif step != "none":
        _deadly(Path if step in ("replace", "unlink", "mkdir") else os, step, int(count))
    CheckpointFiles(Path(folder)).write(KEY, int(seq), content(int(seq)))


if __name__ == "__main__":
    main(*sys.argv[1:])
