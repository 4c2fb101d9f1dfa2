"""Structured logs. Every process calls `configure` once; libraries only `get_logger`."""

from __future__ import annotations

import logging
import sys
from typing import cast

import structlog


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger whose events are key-value pairs; the first argument is the event's stable name."""
    return cast(structlog.stdlib.BoundLogger, structlog.get_logger(name))


def configure(*, level: str = "INFO", json: bool = False) -> None:
    """Send logs to standard error: readable lines, or one JSON object a line."""
    renderer = structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=False)
    processors: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if json:
        processors.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*processors, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
            foreign_pre_chain=processors,
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
