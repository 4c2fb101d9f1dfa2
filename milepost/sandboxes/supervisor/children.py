"""What runs in the forked processes: the keeper of a command, the command itself, and file operations."""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
import termios
from collections.abc import Callable
from typing import Any, Optional

from . import files, kernel, search, wire
from .workspace import MAX_PATH, Refused, Workspace, refusal

FILE_OPERATIONS: dict[str, Callable[[Workspace, dict[str, Any], bytes], files.Result]] = {
    "read": files.read,
    "write": files.write,
    "edit": files.edit,
    "list": files.list_dir,
    "grep": search.grep,
    "glob": search.glob,
}

MAX_ARGUMENT = 120_000
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HOME_PATHS = (".venv/bin", ".local/bin")
"""Below the home directory; in front of the image's PATH, so that what a setup command installed is found."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)


def environment(image: dict[str, str], extra: dict[str, str], home: str, term: str = "dumb") -> dict[str, str]:
    """What the image sets and the person allowed; nothing of the supervisor. `term` is the kind of terminal."""
    clean = {key: value for key, value in image.items() if not key.startswith("MILEPOST_")}
    clean["PATH"] = ":".join([*(f"{home}/{below}" for below in _HOME_PATHS), clean.get("PATH") or _DEFAULT_PATH])
    clean.setdefault("LANG", "C.UTF-8")
    clean.update(HOME=home, TERM=term, **extra)
    return clean


def _prepare(keep: list[int]) -> None:
    """Common to all forked processes: own session, default signals, no descriptor but `keep` and the standard ones."""
    signal.set_wakeup_fd(-1)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    # Not closerange: up to 3.10 it tries every number up to the limit.
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in keep:
            try:
                os.close(fd)
            except OSError:
                pass
    # Only now: until here a command that traced this process had got the supervisor's own sockets.
    kernel.set_dumpable(True)
    kernel.raise_oom_score()


def run_keeper(
    shell: str, start: Callable[[], int], ends: list[int], err: int, status: int, note: Optional[ShellNote] = None
) -> None:
    """Start the command, adopt whatever it leaves behind, report its status, end when nothing is left.

    `start` gives the command's process id; `ends` are descriptors that it needs, `err` the one for a failure. The wait
    status of the command goes to `status` as text, with a 1 if it left processes behind, else a 0, then what the shell
    has noted. This process never returns.
    """
    _prepare([*ends, err, status])
    kernel.become_subreaper()
    try:
        main = start()
    except OSError as error:
        os.write(err, f"{shell}: {error.strerror}\n".encode())
        os.write(status, b"%d 0" % (126 << 8))
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for fd in ends:
        os.close(fd)
    while True:
        try:
            pid, result = os.waitpid(-1, 0)
        except ChildProcessError:
            os._exit(0)
        if pid == main:
            os.write(status, b"%d %d %s" % (result, _has_children(), b"" if note is None else note.read()))
            os.close(status)


def _has_children() -> bool:
    """Reaps what has ended already."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        return False
    return True


class ShellNote:
    """Where a shell writes its working directory at its end: an anonymous file of the keeper.

    By its path in /proc, so that the shell has no descriptor that a script could use for something else.
    """

    def __init__(self) -> None:
        self._fd = -1

    def prepare(self, shell: str, command: bytes, env: dict[str, str]) -> tuple[bytes, dict[str, str]]:
        """Script and environment that make the shell note it; only in the keeper, which must have closed the rest.

        Bash reads what it runs first from the file of BASH_ENV, so that lines of the script keep their numbers; the one
        that the image may name is read as before.
        """
        self._fd = os.memfd_create("cwd")
        first = b"trap 'pwd -P >/proc/%d/fd/%d' EXIT\n" % (os.getpid(), self._fd)
        if not shell.endswith("/bash"):
            return first + command, env
        given = env.get("BASH_ENV")
        after = b'export BASH_ENV=%s; . "$BASH_ENV"\n' % shlex.quote(given).encode() if given else b"unset BASH_ENV\n"
        script = _in_memory("bash", first + after, os.MFD_CLOEXEC)
        return command, {**env, "BASH_ENV": f"/proc/{os.getpid()}/fd/{script}"}

    def read(self) -> bytes:
        """What was noted; empty if nothing was, or no path."""
        if self._fd < 0:
            return b""
        path = os.pread(self._fd, MAX_PATH + 2, 0)
        return path[:-1] if path.startswith(b"/") and path.endswith(b"\n") and len(path) <= MAX_PATH + 1 else b""


def spawn(shell: str, command: bytes, cwd: int, env: dict[str, str], out: int, err: int, stdin: bytes = b"") -> int:
    """Process id of the command. posix_spawn, not fork: it does not copy this process's page tables."""
    os.fchdir(cwd)
    given: tuple[Any, ...] = (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)
    if stdin:
        given = (os.POSIX_SPAWN_DUP2, _in_memory("stdin", stdin, os.MFD_CLOEXEC), 0)
    actions = [given, (os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, err, 2)]
    argv = _arguments(shell, command)
    try:
        return os.posix_spawn(shell, argv, env, file_actions=actions, setsid=True, setsigdef=_SIGNALS)
    except NotImplementedError:
        return os.posix_spawn(shell, argv, env, file_actions=actions, setpgroup=0, setsigdef=_SIGNALS)


def spawn_terminal(shell: str, command: bytes | None, cwd: int, env: dict[str, str], terminal: int) -> int:
    """Process id of a command, or of an interactive shell, whose controlling terminal is the one given."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.fchdir(cwd)
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        for fd in range(3):
            os.dup2(terminal, fd)
        # No login shell: a profile of the distribution would put its own PATH in the place of the sandbox's.
        os.execve(shell, [os.fsencode(shell)] if command is None else _arguments(shell, command), env)
    except OSError as error:
        os.write(2, f"{shell}: {error.strerror}\n".encode())
    finally:
        os._exit(126)


def _in_memory(name: str, data: bytes, flags: int) -> int:
    """An anonymous file that holds the data, at its beginning."""
    fd = os.memfd_create(name, flags)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _arguments(shell: str, command: bytes) -> list[bytes]:
    """The kernel takes at most 128 KiB in one argument; a longer script is read from an anonymous file."""
    if len(command) < MAX_ARGUMENT:
        return [os.fsencode(shell), b"-c", command]
    fd = _in_memory("command", command, 0)  # No MFD_CLOEXEC: the shell reads it.
    return [os.fsencode(shell), b"/proc/self/fd/%d" % fd]


def run_file_operation(root: str, request: dict[str, Any], body: bytes, out: int) -> None:
    """Do one file operation and write its result to `out` as a frame. This process never returns."""
    _prepare([out])
    kernel.become_subreaper()
    os.environ.setdefault("PATH", _DEFAULT_PATH)
    head: dict[str, Any] = {}
    data = b""
    try:
        data, detail = FILE_OPERATIONS[request["op"]](Workspace(root), request, body)
        head["detail"] = detail
    except Refused as error:
        head.update(error_code=error.code, error=error.text, detail=error.detail)
    except OSError as error:
        refused = refusal(error, str(request.get("path", ".")))
        head.update(error_code=refused.code, error=refused.text)
    except (KeyError, TypeError, ValueError, MemoryError, RecursionError) as error:
        head.update(error_code="invalid", error=f"The operation failed: {type(error).__name__}: {error}"[:2000])
    try:
        view = memoryview(wire.encode(head, data))
        while view:
            view = view[os.write(out, view) :]
    finally:
        os._exit(0)
