"""The agents in force: those of the file as it is now, so that an edit counts without a restart."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from milepost.config.loading import Config, load_config
from milepost.domain.agents import AgentConfig
from milepost.domain.errors import ConfigInvalid
from milepost.observability.logging import get_logger

LOOK_SECONDS = 0.5

_log = get_logger(__name__)
Stamp = tuple[int, int, int]


class LiveAgents(Mapping[str, AgentConfig]):
    """The agents by id. Looks at the file at most twice a second; one that is at fault changes nothing.

    Providers, tools and hooks are those of the process's start: an agent that names a new one is refused when it is
    used, with what to do.
    """

    def __init__(self, config: Config) -> None:
        self._path = config.path
        self._agents: Mapping[str, AgentConfig] = dict(config.agents)
        self._lock = threading.Lock()
        self._stamp = _stamp(self._path)
        self._looked = time.monotonic()

    def __getitem__(self, agent_id: str) -> AgentConfig:
        return self._now()[agent_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def refresh(self) -> None:
        """Look at once: this process has edited the file."""
        with self._lock:
            self._looked = 0.0
        self._now()

    def _now(self) -> Mapping[str, AgentConfig]:
        with self._lock:
            if self._path is None or time.monotonic() - self._looked < LOOK_SECONDS:
                return self._agents
            self._looked = time.monotonic()
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return self._agents
            self._stamp = stamp
            try:
                self._agents = dict(load_config(self._path).agents)
            except ConfigInvalid as error:
                _log.warning("agents.unchanged", path=str(self._path), error=error.message)
            return self._agents


def _stamp(path: Path | None) -> Stamp:
    try:
        state = None if path is None else path.stat()
    except OSError:
        state = None
    return (0, 0, 0) if state is None else (state.st_mtime_ns, state.st_size, state.st_ino)
