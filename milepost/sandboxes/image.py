"""Builds the local sandbox image from the distribution packages installed on this machine; no registry is involved.

The image holds the files of `PACKAGES` and of what they depend on, copied from the host: only files that belong to a
package and that everybody may read, so nothing private can get in; no setuid or setgid bits. It carries a digest of
the package versions, so an image that is up to date is not built again.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import io
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from milepost.domain.errors import SandboxUnavailable

BUILD_VERSION = 2
"""Rises when the contents change for another reason than the packages."""

PACKAGES = (
    "bash",
    "ca-certificates",
    "coreutils",
    "dash",
    "diffutils",
    "findutils",
    "gawk",
    "git",
    "grep",
    "gzip",
    "libc-bin",
    "patch",
    "procps",
    "python3",
    "python3-pytest",
    "ripgrep",
    "sed",
    "tar",
    "util-linux",
)
"""Distribution packages the image is made of; `infra/quickstart.sh` installs what is missing."""

EXTRA_PACKAGES = ("bzip2", "file", "jq", "less", "make", "python3-venv", "tree", "unzip", "xz-utils")
"""Taken in if the machine has them."""

_LEFT_OUT = re.compile(
    r"perl|perl-modules-.*|libperl.*|liberror-perl|git-man|debconf|dpkg|adduser|passwd|init-system-helpers|"
    r"sensible-utils|media-types|login|mount|systemd.*|libsystemd-shared|udev|python3?-pip-whl|python3-setuptools-whl"
)
"""Dependencies that only maintainer scripts, manuals or services need."""

_DROPPED_FILES = re.compile(
    r"/usr/share/(doc|doc-base|man|locale|info|lintian|bug|bash-completion|applications|pixmaps|gitweb|menu|common-licenses)(/|$)"
    r"|/usr/share/git-core/contrib/|/(etc|lib|usr/lib)/(systemd|udev|init|cron|apt|dpkg|tmpfiles\.d|sysusers\.d)(/|$)"
    r"|/etc/(init\.d|cron.*|default|logrotate\.d|pam\.d|security|skel)(/|$)|/usr/lib/python3[^/]*/(test|idlelib|ensurepip)/"
    r"|^/(usr/)?sbin/(?!ldconfig)|^/var/|^/(proc|sys|dev|run|tmp)(/|$)"
)
_MERGED = re.compile(r"^/(bin|sbin|lib|lib32|lib64|libx32)(/|$)")

_USERS = (
    "root:x:0:0:root:/root:/bin/sh\n"
    "agent:x:1000:1000:agent:/home/agent:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
)
_GROUPS = "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n"

Progress = Callable[[str], None]


class ImageStore(Protocol):
    """Where the image goes: a Podman service."""

    async def image(self, name: str) -> dict[str, Any] | None: ...

    async def import_image(self, tag: str, archive: Path, changes: list[str]) -> str:
        """Import a tar as an image of one layer; returns its id."""

    async def discard_image(self, image_id: str) -> None:
        """Remove an image unless something uses it; one that is not there is fine."""


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """The image that is there now. `bytes` is the size of the root file system, 0 if it was not built anew."""

    tag: str
    image_id: str
    digest: str
    built: bool
    packages: int
    bytes: int
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What would be built: the closure of installed packages with versions, and its digest (hexadecimal SHA-256)."""

    packages: tuple[str, ...]
    digest: str
    missing: tuple[str, ...]


def _query(*arguments: str) -> str:
    tool = shutil.which("dpkg-query")
    if tool is None:
        raise SandboxUnavailable(
            "The sandbox image is made from Debian or Ubuntu packages, and this machine has no dpkg.",
            fix="Build an image with these commands yourself (see docs/sandbox.md) and name it in sandbox.image.",
        )
    command = [tool, *arguments]
    environment = {"PATH": os.defpath, "LC_ALL": "C.UTF-8"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)  # noqa: S603
    return result.stdout


def _names(relation: str) -> list[list[str]]:
    """A dependency field as a list of alternatives, without versions and architectures."""
    return [
        [re.split(r"[ (:\[]", name.strip())[0] for name in clause.split("|")]
        for clause in relation.split(",")
        if clause.strip()
    ]


def recipe() -> Recipe:
    """Resolve the closure from the package database. Raises SandboxUnavailable on a machine without dpkg."""
    wanted = ("Package", "binary:Package", "Version", "Pre-Depends", "Depends", "Provides", "db:Status-Abbrev")
    fields = "\\t".join(f"${{{name}}}" for name in wanted) + "\\n"
    native = _native_architecture()
    installed: dict[str, tuple[str, str, str]] = {}
    provided: dict[str, str] = {}
    for line in _query("-W", "-f", fields).splitlines():
        name, binary, version, before, needs, provides, status = line.split("\t")
        foreign = ":" in binary and not binary.endswith((":" + native, ":all"))
        if status.startswith("ii") and not foreign:
            installed[name] = (binary, version, f"{before}, {needs}")
            for alternatives in _names(provides):
                provided.setdefault(alternatives[0], name)
    todo = [name for name in (*PACKAGES, *EXTRA_PACKAGES) if name in installed]
    taken: dict[str, str] = {}
    while todo:
        name = todo.pop()
        name = name if name in installed else provided.get(name, "")
        if name in taken or not name or (_LEFT_OUT.fullmatch(name) and name not in PACKAGES):
            continue
        binary, version, depends = installed[name]
        taken[name] = f"{binary}={version}"
        for alternatives in _names(depends):
            found = next((item for item in alternatives if item in installed or item in provided), None)
            if found:
                todo.append(found)
    packages = tuple(sorted(taken.values()))
    text = "\n".join((str(BUILD_VERSION), platform.machine(), *packages))
    missing = tuple(name for name in PACKAGES if name not in taken)
    return Recipe(packages, hashlib.sha256(text.encode()).hexdigest(), missing)


def _native_architecture() -> str:
    libc = _query("-W", "-f", "${Architecture}\\n", "libc-bin").strip()
    return libc.splitlines()[0] if libc else platform.machine()


def write_root(packages: Iterable[str], target: Path) -> int:
    """Write the root file system of `packages` (`name=version`) as an uncompressed tar; returns its bytes."""
    names = [package.partition("=")[0] for package in packages]
    listed = _query("-L", *names).splitlines()
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        root = _Root(archive)
        root.skeleton()
        for path in sorted({line for line in listed if line.startswith("/")}):
            if not _DROPPED_FILES.search(path):
                root.add(path)
        root.alternatives(Path("/var/lib/dpkg/alternatives"))
        root.add("/etc/ld.so.cache")
        root.add("/etc/ssl/certs/ca-certificates.crt")
    return target.stat().st_size


class _Root:
    """A root file system under construction."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._seen: set[str] = set()

    def skeleton(self) -> None:
        folders = ("usr", "usr/bin", "usr/lib", "usr/lib64", "usr/sbin", "etc", "proc", "sys", "dev", "run", "var")
        for name in (*folders, "var/tmp", "root", "home", "tmp", "workspace"):
            self._entry(name, tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755)
        for name in ("bin", "sbin", "lib", "lib64"):
            self._entry(name, tarfile.SYMTYPE, 0o777, link=f"usr/{name}")
        for name, text in (("passwd", _USERS), ("group", _GROUPS), ("hosts", ""), ("resolv.conf", "")):
            self._entry(f"etc/{name}", tarfile.REGTYPE, 0o644, data=text.encode())

    def _entry(self, name: str, kind: bytes, mode: int, link: str = "", data: bytes = b"") -> None:
        if name in self._seen:
            return
        self._seen.add(name)
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.linkname, info.size = kind, mode, link, len(data)
        self._archive.addfile(info, io.BytesIO(data))

    def _parents(self, name: str) -> None:
        parent = name.rpartition("/")[0]
        if parent and parent not in self._seen:
            self._parents(parent)
            self._entry(parent, tarfile.DIRTYPE, 0o755)

    def add(self, path: str) -> None:
        """One path of the host, where a merged /usr has it; what is absent or not readable by all is left out."""
        name = _MERGED.sub(r"/usr/\1\2", path).lstrip("/")
        try:
            found = os.lstat(path)
        except OSError:
            return
        if not name or name in self._seen:
            return
        if stat.S_ISDIR(found.st_mode):
            self._parents(name)
            self._entry(name, tarfile.DIRTYPE, 0o755)
        elif stat.S_ISLNK(found.st_mode):
            self._parents(name)
            self._entry(name, tarfile.SYMTYPE, 0o777, link=str(Path(path).readlink()))
        elif stat.S_ISREG(found.st_mode) and found.st_mode & stat.S_IROTH:
            self._parents(name)
            self._file(path, name, found)
            if name.endswith(".py"):
                self._bytecode(path)

    def _file(self, path: str, name: str, found: os.stat_result) -> None:
        self._seen.add(name)
        info = tarfile.TarInfo(name)
        info.size, info.mtime = found.st_size, int(found.st_mtime)
        info.mode = stat.S_IMODE(found.st_mode) & 0o755
        with Path(path).open("rb") as file:
            self._archive.addfile(info, file)

    def _bytecode(self, path: str) -> None:
        """The compiled form made at installation: the image is read-only and could not keep its own."""
        folder, name = os.path.split(path)
        for compiled in Path(folder, "__pycache__").glob(f"{name[:-3]}.cpython-[0-9]*.pyc"):
            if ".opt-" not in compiled.name:
                self.add(str(compiled))

    def alternatives(self, database: Path) -> None:
        """Links such as awk -> gawk, which maintainer scripts make."""
        for entry in sorted(database.iterdir()) if database.is_dir() else ():
            link = entry.read_text(errors="replace").splitlines()[1:2]
            current = f"/etc/alternatives/{entry.name}"
            if link and os.path.realpath(current).lstrip("/") in self._seen:
                self.add(link[0])
                self.add(current)


def changes(digest: str) -> list[str]:
    """Settings of the image in Dockerfile form."""
    return [
        "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "ENV LANG=C.UTF-8",
        "USER 1000:1000",
        "WORKDIR /workspace",
        'CMD ["/bin/bash"]',
        f"LABEL {DIGEST_LABEL}={digest}",
    ]


DIGEST_LABEL = "org.milepost.recipe"


async def build(
    tag: str, store: ImageStore, progress: Progress | None = None, *, force: bool = False, work: Path | None = None
) -> ImageInfo:
    """Build and import the image unless one with the same digest is there. `work` is a directory for a while.

    Raises:
        SandboxUnavailable: packages without which no sandbox can work are not installed.
    """
    say = progress or (lambda _text: None)
    found = await asyncio.to_thread(recipe)
    if {"bash", "coreutils", "python3", "git"} & set(found.missing):
        raise SandboxUnavailable(
            f"The sandbox image needs packages that are not installed: {', '.join(found.missing)}.",
            fix=f"Install them: {missing_text(found.missing)}",
        )
    present = await store.image(tag)
    labels = ((present or {}).get("Config") or {}).get("Labels") or {}
    if present is not None and labels.get(DIGEST_LABEL) == found.digest and not force:
        say(f"{tag} is up to date ({len(found.packages)} packages)")
        return ImageInfo(tag, str(present["Id"]), found.digest, False, len(found.packages), 0, found.missing)
    with tempfile.TemporaryDirectory(dir=work, prefix="image-") as folder:
        archive = Path(folder) / "root.tar"
        say(f"collecting {len(found.packages)} packages of this machine")
        size = await asyncio.to_thread(write_root, found.packages, archive)
        say(f"importing {size // 1_000_000} MB as {tag}")
        image_id = await store.import_image(tag, archive, changes(found.digest))
    if present is not None and str(present["Id"]) != image_id:
        await store.discard_image(str(present["Id"]))
    say(f"{tag} is ready")
    return ImageInfo(tag, image_id, found.digest, True, len(found.packages), size, found.missing)


def missing_text(missing: Iterable[str]) -> str:
    return f"sudo apt-get install -y --no-install-recommends {' '.join(missing)}"


def main(arguments: list[str] | None = None) -> int:
    """`python -m milepost.sandboxes.image --packages | --recipe | --tar FILE`."""
    parser = argparse.ArgumentParser(prog="python -m milepost.sandboxes.image", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--packages", action="store_true", help="print the packages the image is made of")
    what.add_argument("--recipe", action="store_true", help="print the resolved packages with versions and the digest")
    what.add_argument("--tar", type=Path, metavar="FILE", help="write the root file system to FILE")
    chosen = parser.parse_args(arguments)
    out = sys.stdout.write
    if chosen.packages:
        out("\n".join(PACKAGES) + "\n")
        return 0
    found = recipe()
    if found.missing:
        sys.stderr.write(f"Missing: {', '.join(found.missing)}. Install with: {missing_text(found.missing)}\n")
    if chosen.recipe:
        out("\n".join(found.packages) + f"\n{found.digest}\n")
        return 0
    out(f"{write_root(found.packages, chosen.tar)} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
