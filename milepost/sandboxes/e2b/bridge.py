"""Programs that run in the sandbox: the supervisor, and bridges to it and to ports.

E2B's SDK gives the output of a process as text in UTF-8, so that bytes go over it in base64, a line each.
"""

from __future__ import annotations

import base64
import shlex
import zlib

from milepost.ports.sandbox import SandboxLimits
from milepost.sandboxes import bundle
from milepost.sandboxes.e2b.settings import COMMANDS, HOME, ROOT

ADDRESS = f"milepost-{bundle.supervisor_digest()[:16]}"
"""Of the supervisor's abstract socket. That of another release has another one: it serves its own operations."""
MARK = f"MILEPOST_ROLE={ADDRESS}"
"""In the command line of the supervisor, by which it is found among the processes of a sandbox."""
STAY_SECONDS = 10.0 * 365 * 86_400
"""The service pauses a sandbox that nobody needs; the supervisor itself need not end."""

_BRIDGE = r"""
import base64, os, select, socket, struct, sys
to_port = sys.argv[1] == "port"
try:
    if to_port:
        s = socket.create_connection(("127.0.0.1", int(sys.argv[2])), 10)
    else:
        s = socket.socket(socket.AF_UNIX)
        s.connect("\0" + sys.argv[2])
except OSError as e:
    sys.stderr.write("nothing listens: %s" % e)
    sys.exit(3)
# Whoever listens is what was started as the supervisor, or it is a command that poses as it.
if not to_port and struct.unpack("iii", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0] != int(sys.argv[3]):
    sys.stderr.write("what listens is not the supervisor")
    sys.exit(4)
s.setblocking(False)
os.set_blocking(0, False)
up, reading = b"", True
while True:
    p = select.poll()
    p.register(s, select.POLLIN | (select.POLLOUT if up else 0))
    if reading and len(up) < 1 << 20: p.register(0, select.POLLIN)
    events = dict(p.poll())
    try:
        if events.get(0, 0):
            d = os.read(0, 1 << 18)
            reading = bool(d)
            up += d
            if not reading and not to_port: break
        if events.get(s.fileno(), 0) & (select.POLLIN | select.POLLHUP | select.POLLERR):
            d = s.recv(1 << 15)
            if not d: break
            sys.stdout.write(base64.b64encode(d).decode() + "\n")
            sys.stdout.flush()
        if up: up = up[s.send(up):]
        if to_port and not reading and not up and reading is not None:
            s.shutdown(socket.SHUT_WR)
            reading = None
    except BlockingIOError:
        pass
    except OSError:
        break
"""


def _python(source: str, *arguments: str) -> str:
    packed = base64.b64encode(zlib.compress(source.encode(), 9)).decode("ascii")
    program = f"import zlib,base64;exec(zlib.decompress(base64.b64decode('{packed}')))"
    return f"exec python3 -SsEI -c {shlex.quote(program)} {shlex.join(arguments)}"


def supervisor_command() -> str:
    """Becomes the supervisor; its program is in the environment that `supervisor_environment` gives."""
    return f"{MARK} exec {shlex.join(bundle.SUPERVISOR_COMMAND)}"


def supervisor_environment(limits: SandboxLimits) -> dict[str, str]:
    """See `milepost.sandboxes.bundle.supervisor_environment`."""
    disk = bundle.disk_config(limits, ROOT, {})
    return bundle.supervisor_environment(ROOT, ADDRESS, HOME, alone_seconds=STAY_SECONDS, disk=disk)


def bridge_command(pid: int) -> str:
    """Copies between its own input and output and the supervisor that is process `pid`."""
    return _python(_BRIDGE, "supervisor", ADDRESS, str(pid))


def port_command(port: int) -> str:
    """The same to what listens on a port of the sandbox's loopback."""
    return _python(_BRIDGE, "port", str(port))


LOOK = (
    # bash also names files that are no programs.
    f'for c in {" ".join(COMMANDS)}; do [ -x "$(command -v $c)" ] || echo missing $c; done; '
    "python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' >/dev/null 2>&1 || echo missing python3; "
    f"mkdir -p {ROOT}; [ -e {HOME}/.milepost/filled ] && echo filled; true"
)
"""Tells what a template lacks, and whether the Workspace's files are in the sandbox."""


def unpack_command(archive: str) -> str:
    """Makes the Workspace what the archive has, from nothing, and remembers that it is whole."""
    return (
        f"set -e; rm -rf {ROOT}; mkdir -p {ROOT} {HOME}/.milepost; "
        f"tar -xzf {archive} -C {ROOT} --no-same-owner; rm -f {archive}; touch {HOME}/.milepost/filled"
    )
