"""Fixtures shared by all tests, one plugin per area."""

from __future__ import annotations

pytest_plugins = [
    "tests.support.reports",
    "tests.support.services",
    "tests.support.databases",
    "tests.support.podman",
    "tests.support.model_server",
    "tests.support.temporal",
]
