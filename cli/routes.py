"""Where the API's routes are, and what they answer with."""

from __future__ import annotations

from typing import Any

API = "/api/v1"

Json = dict[str, Any]
