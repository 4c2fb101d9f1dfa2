"""Released source distributions, downloaded once, checked by digest and unpacked under Git."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path

from tests.support.needs import unavailable

DOWNLOAD_SECONDS = 180

_GIT = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "init.defaultBranch=main"]


@dataclass(frozen=True)
class Distribution:
    """A source distribution of a project whose tests need nothing but Python, and pytest where `pytest` says so."""

    name: str
    version: str
    sha256: str

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}.tar.gz"

    def archive(self) -> Path:
        """The archive with the right digest, from the cache (MILEPOST_TEST_CACHE) or the package registry."""
        kept = cache() / self.file
        if not kept.exists() or _sha256(kept) != self.sha256:
            self._download(kept)
        assert _sha256(kept) == self.sha256
        return kept

    def _download(self, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            wanted = folder / "wanted.txt"
            # pip checks the digest before anything in the archive is looked at.
            wanted.write_text(f"{self.name}=={self.version} --hash=sha256:{self.sha256}\n", "utf-8")
            command = [*_pip(folder), "download", "--quiet", "--no-deps", "--no-binary", self.name, "--require-hashes"]
            command += ["--dest", str(folder), "--requirement", str(wanted)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False)
            except subprocess.TimeoutExpired:
                unavailable("the package registry", f"{self.file} did not come within {DOWNLOAD_SECONDS} s")
            if done.returncode:
                unavailable("the package registry", f"{self.file}: {done.stderr.strip()[-500:]}")
            # Whole or not at all: another test process may do the same.
            part = target.with_name(f"{target.name}.{os.getpid()}")
            shutil.copyfile(folder / self.file, part)
            part.replace(target)

    def unpack(self, into: Path) -> Path:
        """The project's folder below `into`, as the first commit of a Git repository."""
        with tarfile.open(self.archive()) as archive:
            archive.extractall(into, filter="data")
        folder = into / f"{self.name}-{self.version}"
        git(folder, "init", "--quiet")
        # What a person has in their own ignore file: tests leave caches.
        (folder / ".git" / "info" / "exclude").write_text("__pycache__/\n.pytest_cache/\n", "utf-8")
        commit(folder, f"{self.name} {self.version}")
        return folder


def cache() -> Path:
    """Where archives are kept: outside of the checkout."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("MILEPOST_TEST_CACHE") or base / "milepost" / "sdists")


def git(folder: Path, *arguments: str) -> str:
    """Run Git in a folder and return what it prints."""
    command = [*_GIT, "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _pip(folder: Path) -> list[str]:
    """pip of this environment, or of a new one where this one has none."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    venv.create(folder / "pip", with_pip=True)
    return [str(folder / "pip" / "bin" / "python"), "-m", "pip"]
