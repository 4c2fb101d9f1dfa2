"""Which tests ran under which Podman service: told at the end of a run, since only some limits hold under some of them.

The fixtures that give a service say in `SERVICES` what it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator

import pytest

from milepost.ports.sandbox import SandboxHealth

PROPERTY = "podman service"
SERVICES: dict[str, str] = {}
"""By the fixture that gives it."""
LIMITS = ("memory", "cpus", "processes", "disk")


def describe(health: SandboxHealth) -> str:
    """The service and what it enforces, in words."""
    held = [limit for limit in LIMITS if limit not in health.unenforced]
    missing = f"; not {', '.join(health.unenforced)}" if health.unenforced else ""
    return f"{health.detail}: enforces {', '.join(held)}{missing}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note the service in the report, which also travels from the processes of pytest-xdist."""
    report = yield
    names = getattr(item, "fixturenames", ())
    fixture = "rootless" if "rootless" in names else "podman_root"
    if report.when == "call" and report.passed and item.get_closest_marker("podman") and fixture in SERVICES:
        report.user_properties.append((PROPERTY, SERVICES[fixture]))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One block for each service: how many tests of which file passed under it."""
    passed: dict[str, Counter[str]] = {}
    for report in terminalreporter.stats.get("passed", []):
        for name, value in getattr(report, "user_properties", ()):
            if name == PROPERTY:
                passed.setdefault(str(value), Counter())[report.nodeid.partition("::")[0]] += 1
    if not passed:
        return
    terminalreporter.section("tests by Podman service")
    for service in sorted(passed):
        terminalreporter.write_line(f"{service} ({passed[service].total()} passed)")
        for file, count in sorted(passed[service].items()):
            terminalreporter.write_line(f"  {count:4d}  {file.removeprefix('tests/')}")
