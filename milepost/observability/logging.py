"""Structured logs. Every process calls `configure` once; libraries only `get_logger`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import cast

import structlog

MAX_TEXT = 8 * 1024
"""Characters of one text of a log entry."""

CHATTY_LIBRARIES = ("alembic", "httpx", "httpx2", "httpcore", "temporalio", "asyncio", "uvicorn", "podman")


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger whose events are key-value pairs; the first argument is the event's stable name."""
    return cast(structlog.stdlib.BoundLogger, structlog.get_logger(name))


def _bounded(_: object, __: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
    """Cut long texts in the middle: a peer's error page of megabytes, and the traceback that repeats it."""
    for key, value in event.items():
        if isinstance(value, str) and len(value) > MAX_TEXT:
            half = MAX_TEXT // 2
            event[key] = f"{value[:half]} [... {len(value) - 2 * half} characters left out ...] {value[-half:]}"
    return event


class _Formatter(structlog.stdlib.ProcessorFormatter):
    """Renders an entry and hides secrets in the whole of it, whichever library wrote it."""

    hide: Callable[[str], str] = staticmethod(str)

    def format(self, record: logging.LogRecord) -> str:
        return self.hide(super().format(record))


def configure(*, level: str = "INFO", json: bool = False, hide: Callable[[str], str] = str) -> None:
    """Send logs to standard error: readable lines, or one JSON object a line. `hide` takes secrets out of them."""
    # Plain tracebacks: the default shows local variables, and with them prompts, file contents and keys.
    console = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    renderer = structlog.processors.JSONRenderer() if json else console
    processors: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        _bounded,
    ]
    structlog.configure(
        processors=[*processors, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    formatter = _Formatter(
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        foreign_pre_chain=processors,
    )
    formatter.hide = hide
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in CHATTY_LIBRARIES:
        # They tell every request or step at INFO; below WARNING they are shown only where DEBUG was asked for.
        logging.getLogger(name).setLevel(logging.NOTSET if level.upper() == "DEBUG" else logging.WARNING)
