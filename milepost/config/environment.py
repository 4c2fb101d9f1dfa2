"""The one place that reads the process environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsError

from milepost.config.models import Settings
from milepost.domain.errors import ConfigInvalid

PREFIX = "MILEPOST_"
HOME = "MILEPOST_HOME"
CONFIG = "MILEPOST_CONFIG"
PODMAN_VARIABLES = ("CONTAINERS_CONF", "CONTAINERS_CONF_OVERRIDE", "CONTAINERS_STORAGE_CONF", "TMPDIR")
PODMAN_SOCKET = "CONTAINER_HOST"


class _EnvironmentSettings(Settings, BaseSettings):  # type: ignore[misc]
    """The settings as the library's environment source wants to see them."""


def environment() -> Mapping[str, str]:
    """A copy of the process environment."""
    return dict(os.environ)


def overrides() -> dict[str, Any]:
    """Settings given as MILEPOST_SECTION__KEY. Raises ConfigInvalid for a value that should be JSON and is not."""
    source = EnvSettingsSource(_EnvironmentSettings, env_prefix=PREFIX, env_nested_delimiter="__", case_sensitive=False)
    try:
        found = source()
    except SettingsError as error:
        raise ConfigInvalid(
            "An environment variable of the form MILEPOST_SECTION__KEY cannot be read: lists and sections must be "
            f"JSON ({error}).",
        ) from error
    _refuse_unknown_sections()
    return found


def _refuse_unknown_sections() -> None:
    for name in os.environ:
        section, nested, _ = name.removeprefix(PREFIX).partition("__")
        if name.startswith(PREFIX) and nested and section.lower() not in Settings.model_fields:
            raise ConfigInvalid(
                f"environment variable {name}: there is no section '{section.lower()}'.",
                field=section.lower(),
                fix=f"Known: {', '.join(Settings.model_fields)}.",
            )


def data_root_override() -> Path | None:
    """The folder that MILEPOST_HOME names."""
    value = os.environ.get(HOME)
    return Path(value) if value else None


def config_override() -> Path | None:
    """The file that MILEPOST_CONFIG names."""
    value = os.environ.get(CONFIG)
    return Path(value) if value else None


def podman_environment() -> dict[str, str]:
    """Where this user's Podman finds its configuration; for a service that Milepost starts."""
    return {name: os.environ[name] for name in PODMAN_VARIABLES if name in os.environ}


def podman_socket() -> str | None:
    """The Unix socket that CONTAINER_HOST names, as other Podman clients read it."""
    value = os.environ.get(PODMAN_SOCKET, "")
    return value if value.startswith("unix://") else None


def default_data_root() -> Path:
    """The platform's data folder of the user; not created."""
    return platformdirs.user_data_path("milepost", appauthor=False)
