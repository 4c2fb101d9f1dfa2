"""Editing the agents of `milepost.yaml` in place: comments, order and all other sections stay."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError

from milepost.config.document import MAX_FILE_BYTES, read_document
from milepost.config.loading import Config, load_config
from milepost.config.models import AgentSection
from milepost.config.problems import nearest
from milepost.config.splicing import Change, edited
from milepost.domain.errors import AgentExists, AgentUnknown, ConfigInvalid, ConfigReadOnly
from milepost.ports.agents import AgentSettings


class AgentFile:
    """`ports.agents.AgentEditor` on the configuration file of this process."""

    def __init__(self, path: Path | None, edited: Callable[[], None] | None = None) -> None:
        self._path = path
        self._after = edited

    def list(self) -> list[AgentSettings]:
        config = load_config(self._path)
        return [_settings(config, agent_id) for agent_id in config.agents]

    def get(self, agent_id: str) -> AgentSettings:
        config = load_config(self._path)
        _known(config, agent_id)
        return _settings(config, agent_id)

    def add(self, agent_id: str, values: Mapping[str, Any]) -> AgentSettings:
        def change(agents: CommentedMap) -> None:
            if agent_id in agents:
                raise AgentExists(
                    f"There is an agent '{agent_id}' already.", field="agent_id", fix="Change it instead."
                )
            agents[agent_id] = _merged(CommentedMap(), values)

        return self._edited(agent_id, change)

    def change(self, agent_id: str, changes: Mapping[str, Any]) -> AgentSettings:
        def change(agents: CommentedMap) -> None:
            if agent_id not in agents:
                # The built-in one, of which nothing is written yet.
                agents[agent_id] = CommentedMap()
            section = agents[agent_id]
            agents[agent_id] = _merged(CommentedMap() if section is None else section, changes)

        self.get(agent_id)
        return self._edited(agent_id, change)

    def remove(self, agent_id: str) -> None:
        self.get(agent_id)

        def change(agents: CommentedMap) -> None:
            if agent_id not in agents:
                raise ConfigInvalid(
                    f"'{agent_id}' is the built-in agent.", field="agent_id", fix="Add another one; it goes then."
                )
            del agents[agent_id]

        self._edited(agent_id, change)

    def _edited(self, agent_id: str, change: Change) -> AgentSettings:
        if self._path is None:
            raise ConfigReadOnly(
                "There is no configuration file; the built-in defaults are in force.",
                fix="Make one and start again: milepost init",
            )
        path = self._path.resolve()
        with _locked(path):
            read_document(path)  # its bounds, and its own errors with line and column
            try:
                text = edited(path.read_text(encoding="utf-8-sig"), "agents", agent_id, change)
            except YAMLError as error:
                raise ConfigInvalid(f"{path}: agents cannot be edited ({type(error).__name__}).") from error
            config = _replaced(path, text)
        if self._after is not None:
            self._after()
        return _settings(config, agent_id) if agent_id in config.agents else AgentSettings(agent_id, False, {}, {})


def _replaced(path: Path, text: str) -> Config:
    """Check the new text as a whole, then put it in place at once; owner, mode and links stay."""
    data = text.encode("utf-8")
    if len(data) > MAX_FILE_BYTES:
        raise ConfigInvalid(f"The configuration would have over {MAX_FILE_BYTES} bytes.")
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".new")
    except OSError as error:
        raise ConfigReadOnly(
            f"{path} cannot be replaced: {error.strerror}.", fix="Make its folder writable."
        ) from error
    new = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            config = load_config(new)
        except ConfigInvalid as error:
            message = error.message.replace(name, str(path))
            raise ConfigInvalid(message, field=error.field, fix=error.fix) from None
        state = path.stat()
        new.chmod(state.st_mode & 0o7777)
        with contextlib.suppress(PermissionError):
            os.chown(new, state.st_uid, state.st_gid)
        new.replace(path)
    except OSError as error:
        raise ConfigReadOnly(f"{path} cannot be replaced: {error.strerror}.", fix="Make it writable.") from error
    finally:
        with contextlib.suppress(OSError):
            new.unlink()
    return config


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One editor at a time, also in other processes; the lock is on the folder, since the file is replaced."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigReadOnly(f"{path.parent} cannot be read: {error.strerror}.") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _settings(config: Config, agent_id: str) -> AgentSettings:
    section = config.settings.agents.get(agent_id, AgentSection())
    written = section.model_dump(mode="json", exclude_unset=True)
    effective = json.loads(section.model_dump_json())
    agent = config.agents[agent_id]
    effective["model"] = agent.model
    effective["fallbacks"] = [{"provider": route.provider, "model": route.model} for route in agent.fallbacks]
    return AgentSettings(agent_id, agent_id == config.default_agent, written, effective)


def _known(config: Config, agent_id: str) -> None:
    if agent_id not in config.agents:
        fix = nearest(agent_id, list(config.agents))
        raise AgentUnknown(f"There is no agent '{agent_id}'.", field="agent_id", fix=fix)


def _merged(section: Any, changes: Mapping[str, Any]) -> Any:
    """Changes set into a section in place, so that comments around what stays are kept."""
    if not isinstance(section, CommentedMap):
        section = CommentedMap()
    for key, value in changes.items():
        if value is None:
            section.pop(key, None)
        elif isinstance(value, Mapping):
            section[key] = _merged(section.get(key), value)
        else:
            section[key] = value
    return section
