"""What is logged has bounds, whatever a peer sends."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from milepost.observability.logging import MAX_TEXT, configure, get_logger


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.parametrize("as_json", [True, False])
def test_long_texts_and_tracebacks_are_cut(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    configure(json=as_json)
    page = "<html>" + "x" * 3_000_000
    try:
        try:
            raise ValueError(page)
        except ValueError as error:
            raise RuntimeError(page) from error
    except RuntimeError:
        logging.getLogger("some.library").exception("It failed: %s", page)
        get_logger("milepost").exception("call.failed", detail=page)
    written = capsys.readouterr().err
    assert len(written) < 8 * MAX_TEXT
    assert written.count("left out") >= 4
    assert "call.failed" in written and "Traceback" in written
    if as_json:
        assert all(json.loads(line)["exception"].endswith("x") for line in written.splitlines())
