"""Packs the supervisor into strings that `python3 -c` runs, so that a container needs no file of ours."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import zlib
from collections.abc import Mapping
from importlib import resources
from typing import Any

from milepost.ports.sandbox import SandboxLimits

# Modules in an order in which each finds what it imports.
_MODULES = (
    *("wire", "kernel", "workspace", "files", "search", "children", "tree", "operation", "process", "registry"),
    *("connection", "processes", "disk", "server", "main"),
)

_LOADER = """
import sys, types
def load(sources):
    package = types.ModuleType("supervisor")
    package.__path__ = []
    sys.modules["supervisor"] = package
    for name, source in sources:
        module = types.ModuleType("supervisor." + name)
        module.__package__ = "supervisor"
        sys.modules[module.__name__] = module
        setattr(package, name, module)
        exec(compile(source, "<supervisor/" + name + ".py>", "exec"), module.__dict__)
load(SOURCES)
sys.modules["supervisor.main"].main(CONFIG)
"""

_BRIDGE = r"""
import os, select, socket, struct, sys
s = socket.socket(socket.AF_UNIX)
try:
    s.connect("\0" + sys.argv[1])
except OSError as e:
    sys.stderr.write("no supervisor: %s" % e)
    sys.exit(3)
# Whoever listens is the first process of the container, or it is a command that poses as the supervisor.
if struct.unpack("iii", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0] != 1:
    sys.stderr.write("what listens is not the supervisor")
    sys.exit(4)
s.setblocking(False); os.set_blocking(0, False); os.set_blocking(1, False)
up = down = b""; open_ = True
while True:
    p = select.poll()
    if open_: p.register(s, (select.POLLIN if len(down) < 1 << 20 else 0) | (select.POLLOUT if up else 0))
    p.register(0, select.POLLIN if len(up) < 1 << 20 else 0)
    p.register(1, select.POLLOUT if down else 0)
    events = dict(p.poll(5000 if not open_ else None))
    if not events: break
    try:
        if events.get(0, 0):
            d = os.read(0, 1 << 18)
            if not d: break
            up += d
        if events.get(s.fileno(), 0) & (select.POLLIN | select.POLLHUP | select.POLLERR) and open_:
            d = s.recv(1 << 18)
            open_ = bool(d)
            down += d
        if up and open_: up = up[s.send(up):]
        if down: down = down[os.write(1, down[:1 << 16]):]
        if events.get(1, 0) & select.POLLERR: break
    except BlockingIOError:
        pass
    except OSError:
        break
    if not open_ and not down: break
"""

SOURCE_VARIABLE = "MILEPOST_SUPERVISOR"
BRIDGE_VARIABLE = "MILEPOST_BRIDGE"

_PYTHON = ("python3", "-SsEI", "-c")
_RUN = "import os,zlib,base64;exec(zlib.decompress(base64.b64decode(os.environ.pop('{name}'))))"


def _pack(source: str) -> str:
    return base64.b64encode(zlib.compress(source.encode(), 9)).decode("ascii")


@functools.cache
def _sources() -> list[tuple[str, str]]:
    folder = resources.files("milepost.sandboxes") / "supervisor"
    return [(name, (folder / f"{name}.py").read_text(encoding="utf-8")) for name in _MODULES]


def supervisor_environment(
    root: str, address: str, home: str, *, alone_seconds: float | None = None, disk: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """The environment variable that `SUPERVISOR_COMMAND` runs: the whole program, its address and directories.

    `alone_seconds` is how long it stays when nobody needs it, instead of its own choice; `disk` see `disk_config`.
    """
    config: dict[str, Any] = {"root": root, "address": address, "home": home, **(disk or {})}
    if alone_seconds is not None:
        config["alone"] = str(alone_seconds)
    program = f"SOURCES = {json.dumps(_sources())}\nCONFIG = {json.dumps(config)}\n{_LOADER}"
    return {SOURCE_VARIABLE: _pack(program)}


def disk_config(limits: SandboxLimits, workspace: str, volumes: Mapping[str, str]) -> dict[str, Any]:
    """Where the supervisor measures, and what may be used there. `volumes`: name -> where it is mounted."""
    places = {name: {"path": path, "limit": limits.volume_bytes, "skip": []} for name, path in volumes.items()}
    # What is mounted below the Workspace has a bound of its own.
    places["workspace"] = {"path": workspace, "limit": limits.workspace_bytes, "skip": list(volumes.values())}
    return {"places": places, "free": limits.free_bytes}


def supervisor_digest() -> str:
    """Changes with the supervisor's code; a container with another one is replaced."""
    return hashlib.sha256(json.dumps(_sources()).encode()).hexdigest()


SUPERVISOR_COMMAND = (*_PYTHON, _RUN.format(name=SOURCE_VARIABLE))


def bridge_command(address: str) -> tuple[str, ...]:
    """Copies its standard input and output to and from the supervisor's socket; ends when either side ends."""
    return (*_PYTHON, _RUN.format(name=BRIDGE_VARIABLE), address)


def bridge_environment() -> dict[str, str]:
    return {BRIDGE_VARIABLE: _pack(_BRIDGE)}
