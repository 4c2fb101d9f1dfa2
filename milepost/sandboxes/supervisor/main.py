"""Entry point inside the container."""

from __future__ import annotations

import gc
import os
import signal
from typing import Any

from . import kernel
from .disk import Disk
from .server import ALONE_SECONDS, Server


def main(config: dict[str, Any]) -> None:
    """Serve until killed, or until nobody needs it any more.

    `config`: `root` and `home` (directories), `address` (name of the abstract socket), `alone` (seconds), and
    `places` and `free` as `Disk` takes them.

    As the first process of its container it cannot be killed from inside, not even with SIGKILL; other signals are
    without effect, so stopping the container is a kill from outside.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)
    os.umask(0o022)
    kernel.become_subreaper()
    kernel.set_title("milepost-supervisor")
    kernel.set_dumpable(False)
    # Collections in a forked child would copy every page of this process.
    gc.freeze()
    disk = Disk(config.get("places") or {}, int(config.get("free") or 0))
    disk.bound_files()
    alone = float(config.get("alone", ALONE_SECONDS))
    Server(config["root"], config["address"], config["home"], alone, disk).serve()
