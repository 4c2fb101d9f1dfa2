"""Finding, reading and checking the configuration."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from pydantic import ValidationError

from milepost.config import convert
from milepost.config.convert_providers import providers
from milepost.config.document import Document, read_document
from milepost.config.embeddings import embeddings
from milepost.config.environment import (
    config_override,
    data_root_override,
    default_data_root,
    environment,
    overrides,
    podman_socket,
)
from milepost.config.longterm import long_term
from milepost.config.models import Settings
from milepost.config.problems import ConfigProblems, problem_at, problems_of
from milepost.config.references import is_reference
from milepost.config.secrets import ReferenceSecrets
from milepost.config.skills import SkillBook, read_skills
from milepost.domain.agents import AgentConfig
from milepost.domain.embeddings import EmbeddingsConfig
from milepost.domain.errors import ConfigInvalid, SecretMissing
from milepost.domain.extensions import HookConfig, ToolConfig
from milepost.domain.longterm import LongTermConfig
from milepost.domain.prices import PriceList
from milepost.domain.providers import ProviderConfig

FILE_NAME = "milepost.yaml"


@dataclass(frozen=True, slots=True)
class Config:
    """The checked configuration with all defaults filled in. `path` is the file it came from, None without one.

    `digest` is two SHA-256 with a dot between, of what the file says without its agents, and of its agents, whatever
    its form: equal files and defaults that are written out have the same one. Variables of the environment and
    `data_root` are no part of it.
    """

    settings: Settings
    path: Path | None
    data_root: Path
    providers: Mapping[str, ProviderConfig]
    agents: Mapping[str, AgentConfig]
    tools: Mapping[str, ToolConfig]
    hooks: Mapping[str, HookConfig]
    default_agent: str
    prices: PriceList
    skills: SkillBook
    embeddings: EmbeddingsConfig
    long_term: LongTermConfig
    secrets: ReferenceSecrets
    digest: str

    @property
    def sandbox_environment(self) -> dict[str, str]:
        """Variables that commands in the sandbox see: the allowed names that are set on this machine."""
        present = environment()
        return {name: present[name] for name in self.settings.sandbox.environment if name in present}

    def blobs(self, default: Path) -> Path:
        """Folder of long texts: the configured one, relative to the configuration's folder, else `default`."""
        chosen = self.settings.database.blobs
        if chosen is None:
            return default
        return (self.path.parent if self.path is not None else Path.cwd()) / chosen.expanduser()

    @property
    def podman_socket(self) -> str | None:
        """Podman's API socket, where configuration or CONTAINER_HOST names one."""
        configured = self.settings.sandbox.socket
        return podman_socket() if configured is None else str(configured.expanduser())

    def database_url(self) -> str:
        """Address of the database, with its password. Never print it.

        Raises:
            SecretMissing: a reference in it does not resolve.
            ConfigInvalid: the address behind a reference is none.
        """
        url = self.settings.database.url
        if url is None:
            return f"sqlite:///{self.data_root / 'milepost.db'}"
        if is_reference(url):
            url = self.secrets.resolve(url)
            self.secrets.redactor.learn(unquote(urlsplit(url).password or ""))
            if urlsplit(url).scheme not in ("sqlite", "postgresql"):
                raise ConfigInvalid(
                    "The address behind 'database.url' is neither sqlite:///PATH nor postgresql://...",
                    field="database.url",
                )
        if self.settings.database.password is not None:
            url = _with_password(url, self.secrets.resolve(self.settings.database.password))
        return url

    def learn_secrets(self) -> None:
        """Resolve every reference, so that its value is hidden in what this process records and logs.

        One that does not resolve is left to whoever needs it.
        """
        for reference in _references(self.settings.model_dump(mode="json")):
            with contextlib.suppress(SecretMissing):
                self.secrets.resolve(reference)


def find_file(explicit: Path | None) -> Path | None:
    """The file that counts: given, MILEPOST_CONFIG, the current folder's, the data root's; None if there is none.

    Raises:
        ConfigInvalid: a file that was named does not exist.
    """
    named = explicit or config_override()
    if named is not None:
        path = named.expanduser().absolute()
        if not path.is_file():
            raise ConfigInvalid(
                f"The configuration {path} does not exist.", fix="Name an existing file, or make one: milepost init"
            )
        return path
    root = (data_root_override() or default_data_root()).expanduser().absolute()
    for candidate in (Path.cwd() / FILE_NAME, root / FILE_NAME):
        if candidate.is_file():
            return candidate
    return None


def load_config(explicit: Path | None = None) -> Config:
    """The configuration of this process: defaults, then the file, then MILEPOST_SECTION__KEY variables.

    Raises:
        ConfigInvalid: with file, line, column, key and the nearest known key; `ConfigProblems` lists every fault.
    """
    path = find_file(explicit)
    document = read_document(path) if path is not None else None
    env = overrides()
    data = _merge(document.data if document else {}, env)
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        raise ConfigProblems(problems_of(error, Settings, document, env, data)) from None
    faults = [problem_at(*fault, document, env) for fault in convert.check(settings)]
    if faults:
        raise ConfigProblems(faults)
    base = path.parent if path is not None else Path.cwd()
    skills = read_skills([base / folder.expanduser() for folder in settings.skills.folders])
    faults = [problem_at(*fault, document, env) for fault in convert.check_skills(settings, skills.skills)]
    if faults:
        raise ConfigProblems(faults)
    return Config(
        settings=settings,
        path=path,
        data_root=_data_root(settings, base),
        providers=providers(settings, base),
        agents=convert.agents(settings),
        tools=convert.tools(settings),
        hooks=convert.hooks(settings),
        default_agent=convert.default_agent(settings),
        prices=convert.prices(settings),
        skills=skills,
        embeddings=embeddings(settings.embeddings),
        long_term=long_term(settings.long_term_memory),
        secrets=ReferenceSecrets(base),
        digest=_digest(document.data if document else {}),
    )


def json_schema() -> dict[str, Any]:
    """JSON Schema of `milepost.yaml`, for editors."""
    schema = Settings.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Milepost configuration"}


def shown(config: Config) -> dict[str, Any]:
    """The configuration in force as JSON-shaped values. Secrets appear as the references they are."""
    values: dict[str, Any] = json.loads(config.settings.model_dump_json())
    values["data_root"] = str(config.data_root)
    values["default_agent"] = config.default_agent
    values["agents"] = {
        name: {
            "provider": agent.provider,
            "model": agent.model,
            "system_prompt": agent.system_prompt,
            "tools": list(agent.tools),
            "sampling": json.loads(json.dumps(asdict(agent.sampling))),
            "max_rounds": agent.max_rounds,
            "fallbacks": [{"provider": route.provider, "model": route.model} for route in agent.fallbacks],
        }
        for name, agent in config.agents.items()
    }
    return values


def _digest(data: Mapping[str, Any]) -> str:
    try:
        values = Settings.model_validate(data).model_dump(mode="json", exclude={"data_root"})
    except ValidationError:
        # Valid only together with variables of the environment.
        values = dict(data)
    agents = values.pop("agents", {})
    return ".".join(
        hashlib.sha256(json.dumps(each, default=str).encode("utf-8", "backslashreplace")).hexdigest()
        for each in (values, agents)
    )


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, str) and is_reference(value):
        yield value
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _references(item)


def _data_root(settings: Settings, base: Path) -> Path:
    override = data_root_override()
    if override is not None:
        return override.expanduser().absolute()
    if settings.data_root is not None:
        return (base / settings.data_root.expanduser()).absolute()
    return default_data_root().absolute()


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def _with_password(url: str, password: str) -> str:
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        raise ConfigInvalid(
            "SQLite has no password.", field="database.password", fix="Remove database.password, or use PostgreSQL."
        )
    user, _, host = parts.netloc.rpartition("@")
    netloc = f"{user.partition(':')[0]}:{quote(password, safe='')}@{host}"
    return urlunsplit((parts.scheme, netloc, parts.path, parts.query, parts.fragment))


__all__ = ["Config", "Document", "find_file", "json_schema", "load_config", "shown"]
