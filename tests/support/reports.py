"""Reports that any terminal and any process can carry.

Tests feed lone surrogates through the product, and what it logs of them is part of the report, which pytest-xdist
refuses to send from its workers.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write what UTF-8 lacks as escapes."""
    report = yield
    report.sections = [(name, _escaped(text)) for name, text in report.sections]
    if report.longrepr is not None and report.failed:
        text = str(report.longrepr)
        if text != _escaped(text):
            report.longrepr = _escaped(text)
    return report


def _escaped(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
