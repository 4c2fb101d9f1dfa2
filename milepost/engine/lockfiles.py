"""What the lockfiles of a folder propose: an image and the exact command that installs what they name. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

HOME = "/home/agent"
"""Home of the commands in the sandbox; what is installed there lies on a volume of the environment."""

NODE, PYTHON, RUST = "node:20-slim", "python:3.12-slim", "rust:bookworm"
_VENV = 'python3 -m venv "$HOME/.venv"'


@dataclass(frozen=True, slots=True)
class Lockfile:
    """`names`: any of them; `image` None where no curated image has the tool."""

    names: tuple[str, ...]
    tool: str
    image: str | None
    command: str
    variables: dict[str, str] = field(default_factory=dict)
    needs: str | None = None
    """A further file that must be there."""


_UV = {"UV_PROJECT_ENVIRONMENT": f"{HOME}/.venv"}
LOCKFILES = (
    Lockfile(("pnpm-lock.yaml",), "pnpm", NODE, "corepack pnpm install --frozen-lockfile"),
    Lockfile(("yarn.lock",), "yarn", NODE, "corepack yarn install --immutable", needs=".yarnrc.yml"),
    Lockfile(("yarn.lock",), "yarn", NODE, "yarn install --frozen-lockfile"),
    Lockfile(("package-lock.json", "npm-shrinkwrap.json"), "npm", NODE, "npm ci"),
    Lockfile(("uv.lock",), "uv", PYTHON, "python3 -m pip install --user uv && python3 -m uv sync --locked", _UV),
    Lockfile(
        ("poetry.lock",),
        "poetry",
        PYTHON,
        f'{_VENV} && python3 -m pip install --user poetry && VIRTUAL_ENV="$HOME/.venv" python3 -m poetry install'
        " --no-interaction",
    ),
    Lockfile(
        ("requirements.txt",), "pip", PYTHON, f'{_VENV} && "$HOME/.venv/bin/python" -m pip install -r requirements.txt'
    ),
    Lockfile(("Cargo.lock",), "cargo", RUST, "cargo fetch --locked", {"CARGO_HOME": f"{HOME}/.cargo"}),
    Lockfile(("go.sum",), "go", None, "go mod download", {"GOPATH": f"{HOME}/go"}),
)
"""In order: the first that a folder has is proposed."""

NAMES = frozenset(name for lockfile in LOCKFILES for name in lockfile.names) | {".yarnrc.yml", "package.json"}
"""File names that matter, all at the root of the folder."""


@dataclass(frozen=True, slots=True)
class FoundLockfile:
    """The lockfile that counts, the name it has here, and notes about it."""

    lockfile: Lockfile
    name: str
    notes: tuple[str, ...]


def choose(present: Collection[str]) -> FoundLockfile | None:
    """The proposal for a folder that has these files at its root."""
    matching = [item for item in LOCKFILES if item.needs is None or item.needs in present]
    found = [(item, name) for item in matching for name in item.names if name in present]
    if not found:
        return None
    lockfile, name = found[0]
    others = sorted({other for _, other in found} - {name})
    notes = [f"Also found, and not used: {', '.join(others)}."] if others else []
    if lockfile.image is None:
        notes.append(f"No curated image has {lockfile.tool}: name an image that has it.")
    return FoundLockfile(lockfile, name, tuple(notes))
