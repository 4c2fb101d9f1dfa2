"""The per-instance token: one secret for local use, in a file that only its owner can read."""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import secrets
import stat
from pathlib import Path

from milepost.domain.errors import ConfigInvalid, StorageUnavailable

TOKEN_BYTES = 32
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32,512}")
_MAX_FILE_BYTES = 4096


def load_or_create_token(path: Path) -> str:
    """The token in `path`; on first use a fresh one of 256 random bits, in a new file of mode 0600.

    The file appears under its name whole or not at all, and of two processes that start together both get one token.

    Raises:
        ConfigInvalid: the file holds no token, or others than its owner may read it.
        StorageUnavailable: the file can be neither read nor written.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            return _load(path)
        _create(path, secrets.token_urlsafe(TOKEN_BYTES))
        return _load(path)
    except OSError as error:
        raise StorageUnavailable(
            f"The token file {path} cannot be used: {error.strerror or error}.",
            fix="Check that its folder exists, belongs to this user and has space.",
        ) from error


def same_secret(given: str, expected: str) -> bool:
    """Compare in a time that does not depend on where the strings differ."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode("utf-8", "surrogatepass"))


def _load(path: Path) -> str:
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        text = file.read(_MAX_FILE_BYTES).decode("ascii", "replace").strip()
    if mode & 0o077:
        raise ConfigInvalid(
            f"The token file {path} can be read by others (mode {mode:04o}).",
            fix=f"Delete it to get a fresh token (others may know this one), or keep it with: chmod 600 {path}",
        )
    if not _TOKEN.fullmatch(text):
        raise ConfigInvalid(f"The token file {path} holds no token.", fix="Delete it to get a fresh one.")
    return text


def _create(path: Path, token: str) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(token + "\n")
            file.flush()
            os.fsync(file.fileno())
        # A link never replaces: whoever comes first decides, the other one reads that token.
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()
