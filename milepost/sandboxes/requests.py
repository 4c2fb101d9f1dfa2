"""Operations of the port as requests to the supervisor, and its answers as outcomes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from milepost.domain.errors import PayloadTooLarge
from milepost.ports.sandbox import (
    MAX_STDIN_BYTES,
    EditFile,
    Exec,
    Glob,
    Grep,
    ListDir,
    Operation,
    Outcome,
    ReadFile,
    WriteFile,
)
from milepost.sandboxes.supervisor import wire

MAX_OPERATION_BYTES = wire.MAX_BODY
MAX_COMMAND_BYTES = 16 * 1024 * 1024


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _bounded(owner: str, field: str, data: bytes, limit: int = MAX_OPERATION_BYTES) -> bytes:
    if len(data) > limit:
        raise PayloadTooLarge.of(owner, field, len(data), limit)
    return data


def request(operation: Operation, environment: Mapping[str, str]) -> tuple[dict[str, Any], bytes]:
    """Head and body of the `run` frame. Raises PayloadTooLarge."""
    match operation:
        case Exec(command=command, stdin=stdin):
            script = _bounded("exec", "command", _bytes(command), MAX_COMMAND_BYTES)
            head = {"op": "exec", "cwd": operation.cwd, "timeout": operation.timeout, "keep_cwd": operation.keep_cwd}
            head |= {"env": dict(environment), "split": len(script)}
            return head, script + _bounded("exec", "stdin", stdin, MAX_STDIN_BYTES)
        case ReadFile(path=path, offset=offset, limit=limit, unit=unit):
            return {"op": "read", "path": path, "offset": offset, "limit": limit, "unit": unit}, b""
        case WriteFile(path=path, data=data):
            return {"op": "write", "path": path}, _bounded("write", "data", data)
        case EditFile(path=path, old=old, new=new, replace_all=replace_all):
            first = _bytes(old)
            body = _bounded("edit", "old + new", first + _bytes(new))
            return {"op": "edit", "path": path, "split": len(first), "all": replace_all}, body
        case ListDir(path=path, limit=limit):
            return {"op": "list", "path": path, "limit": limit}, b""
        case Grep(pattern=pattern, path=path, glob=glob, limit=limit):
            return {"op": "grep", "pattern": pattern, "path": path, "glob": glob, "limit": limit}, b""
        case Glob(pattern=pattern, path=path, limit=limit):
            return {"op": "glob", "pattern": pattern, "path": path, "limit": limit}, b""


def outcome(head: Mapping[str, Any], body: bytes, stdout: bytes, stderr: bytes, attached: bool) -> Outcome:
    """What a `done` or `refused` frame says, with the output that came before it. Raises TypeError, ValueError."""
    code, error_code, error = head.get("exit_code"), head.get("error_code"), head.get("error")
    return Outcome(
        exit_code=None if code is None else int(code),
        stdout=body or stdout,
        stderr=stderr,
        truncated=bool(head.get("truncated")),
        timed_out=bool(head.get("timed_out")),
        killed=bool(head.get("killed")),
        error_code=None if error_code is None else str(error_code)[:100],
        error=None if error is None else str(error)[:16_384],
        detail={str(key): value for key, value in dict(head.get("detail") or {}).items() if _plain(value)},
        attached=attached,
    )


def _plain(value: object) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and len(value) <= 1000)
