"""A long Session stays in its window, and what its summaries lose is found again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.context.planted import Report, play


def check(report: Report, window: int) -> None:
    assert report.wrong == [], report
    assert report.largest <= window * 0.85
    assert report.dropped >= 1, "the summarizer loses facts"
    assert report.found["search_output"] + report.found["recall_search"] >= report.dropped, "which are found again"
    assert report.found["recall_search"] >= 1, "what was said, by recall"
    assert report.found["search_output"] >= 1, "what was printed, by the tool-output reader"
    assert report.breaks == report.compactions
    assert report.summaries <= report.compactions <= report.turns // 4


async def test_lost_facts_are_found_again(ledger_url: str, tmp_path: Path) -> None:
    report = await play(ledger_url, tmp_path, 34, 12_000)
    check(report, 12_000)


@pytest.mark.slow
async def test_300_turns(sqlite_url: str, tmp_path: Path) -> None:
    report = await play(sqlite_url, tmp_path, 300, 32_000)
    check(report, 32_000)
    assert report.sent < report.uncompacted / 4
    assert report.reusable > report.sent * 0.8
