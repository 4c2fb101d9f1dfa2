"""Exports."""

from __future__ import annotations

from typing import Literal

from api.schemas.base import Query


class ExportQuery(Query):
    """Which document. `json` is lossless, has all turns and can be imported."""

    format: Literal["json", "md", "html"] = "json"
    superseded: bool = False
    """Also turns that a rewind has superseded (`md` and `html`)."""
