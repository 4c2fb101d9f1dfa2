"""Reading a devcontainer.json as far as it can propose an environment. Pure.

Source of the format: https://containers.dev/implementors/json_reference/ (JSON with comments).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from milepost.domain.environments import MAX_COMMAND_CHARACTERS, MAX_PORTS, MAX_VARIABLES

MAX_VALUE_CHARACTERS = 8_192
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])', re.DOTALL)
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IMAGE = re.compile(r"[a-z0-9][a-zA-Z0-9._/:@-]{0,254}")
_IGNORED = (
    "build",
    "dockerFile",
    "dockerComposeFile",
    "features",
    "initializeCommand",
    "onCreateCommand",
    "updateContentCommand",
    "postStartCommand",
    "postAttachCommand",
    "mounts",
    "runArgs",
    "privileged",
    "capAdd",
    "securityOpt",
    "remoteEnv",
    "remoteUser",
    "containerUser",
    "workspaceFolder",
)
"""Properties that change what is run or how, and that are not followed."""


@dataclass(slots=True)
class Devcontainer:
    """What a devcontainer.json proposes; `notes` say what of it is left out."""

    image: str | None = None
    command: str | None = None
    ports: tuple[int, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def parse(text: str, folder_name: str) -> Devcontainer:
    """Read the file; `folder_name` is the Workspace's own name. Never raises: what cannot be read is a note."""
    found = Devcontainer()
    try:
        value = json.loads(without_comments(text))
    except (ValueError, RecursionError) as error:
        found.notes.append(f"devcontainer.json cannot be read: {error}"[:200])
        return found
    if not isinstance(value, dict):
        found.notes.append("devcontainer.json is not an object.")
        return found
    reader = _Reader(folder_name, found)
    reader.image(value.get("image"))
    reader.command(value.get("postCreateCommand"))
    reader.ports(value.get("forwardPorts"))
    reader.variables(value.get("containerEnv"))
    ignored = [name for name in _IGNORED if name in value]
    if ignored:
        found.notes.append(f"Not used: {', '.join(ignored)}.")
    return found


def without_comments(text: str) -> str:
    """JSON with comments and trailing commas as JSON; what stands in strings is kept."""
    plain = _TOKEN.sub(lambda match: match[0] if match[0].startswith('"') else " ", text.removeprefix("\ufeff"))
    return _TRAILING.sub(lambda match: match[1] or "", plain)


class _Reader:
    def __init__(self, folder_name: str, found: Devcontainer) -> None:
        self._known = {
            "localWorkspaceFolder": "/workspace",
            "containerWorkspaceFolder": "/workspace",
            "localWorkspaceFolderBasename": folder_name,
            "containerWorkspaceFolderBasename": "workspace",
        }
        self._found = found

    def image(self, value: Any) -> None:
        if value is None:
            return
        if isinstance(value, str) and _IMAGE.fullmatch(value):
            self._found.image = value
        else:
            self._left_out("image", "it is no image name")

    def command(self, value: Any) -> None:
        """Text for a shell, a list of arguments without one, or an object of those by name."""
        parts = list(value.values()) if isinstance(value, Mapping) else [value]
        texts = []
        for part in parts:
            if isinstance(part, str):
                text = part.strip()
            elif isinstance(part, list) and all(isinstance(item, str) for item in part):
                text = shlex.join(part)
            elif part is None:
                continue
            else:
                return self._left_out("postCreateCommand", "it is neither text nor a list nor an object of those")
            if text:
                texts.append(text)
        if not texts:
            return None
        command = texts[0] if len(texts) == 1 else " &&\n".join(f"( {text} )" for text in texts)
        filled = self._filled(command)
        if filled is None:
            return self._left_out("postCreateCommand", "it refers to variables of the host")
        if len(filled) > MAX_COMMAND_CHARACTERS or "\0" in filled:
            return self._left_out("postCreateCommand", "it is too long")
        self._found.command = filled
        return None

    def ports(self, value: Any) -> None:
        if not isinstance(value, list):
            return
        ports: list[int] = []
        for item in value[: 2 * MAX_PORTS]:
            number = item if isinstance(item, int) and not isinstance(item, bool) else None
            if isinstance(item, str) and item.removeprefix("localhost:").isdigit():
                number = int(item.removeprefix("localhost:")[:6])
            if number is None or not 0 < number < 65536:
                self._left_out("forwardPorts", f"{str(item)[:40]!r} is no port of the container")
            elif number not in ports and len(ports) < MAX_PORTS:
                ports.append(number)
        self._found.ports = tuple(ports)

    def variables(self, value: Any) -> None:
        if not isinstance(value, Mapping):
            return
        for name, given in list(value.items())[:MAX_VARIABLES]:
            filled = self._filled(given) if isinstance(given, str) else None
            if not _NAME.fullmatch(str(name)) or filled is None or "\0" in filled or len(filled) > MAX_VALUE_CHARACTERS:
                self._left_out("containerEnv", f"{str(name)[:40]} is not a name with a plain value")
            else:
                self._found.variables[name] = filled

    def _filled(self, text: str) -> str | None:
        """The text with what is known of the folder; None if it asks for the host's or an unknown variable."""
        if any(name.partition(":")[0] not in self._known and ":" in name for name in _VARIABLE.findall(text)):
            return None
        # What is left, such as ${HOME}, is the shell's own.
        return _VARIABLE.sub(lambda match: self._known.get(match[1], match[0]), text)

    def _left_out(self, what: str, why: str) -> None:
        if len(self._found.notes) < 20:
            self._found.notes.append(f"{what} is not used: {why}.")
