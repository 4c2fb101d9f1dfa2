"""Offline validators of requests, one module per wire format, written from the rules real services enforce.

A module of this package is a format: its name is the format's, and `violations(body)` says why a service would answer
400 to a request, with an empty list for a valid one.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from typing import Any


def formats() -> list[str]:
    """The names of all formats."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def validate(format_name: str, request_json: Any) -> list[str]:
    """Why a service would refuse the request (a JSON value, or its text); empty for a valid one."""
    body = json.loads(request_json) if isinstance(request_json, str | bytes) else request_json
    found: list[str] = importlib.import_module(f"{__name__}.{format_name}").violations(body)
    return found
