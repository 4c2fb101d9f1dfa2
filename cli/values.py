"""KEY=VALUE arguments: keys with dots between, values in YAML."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from milepost.domain.errors import InvalidInput


def nested(values: Sequence[str], unset: Sequence[str] = ()) -> dict[str, Any]:
    """KEY=VALUE texts as nested mappings; a key that is unset is None. Raises InvalidInput."""
    found: dict[str, Any] = {}
    for text in values:
        key, equals, value = text.partition("=")
        if not equals:
            raise InvalidInput(f"'{text[:80]}' is no KEY=VALUE.", field="values", fix="Write model=large, for example.")
        _put(found, key, _yaml(key, value))
    for key in unset:
        _put(found, key, None)
    return found


def _put(found: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        below = found.setdefault(part, {})
        if not isinstance(below, dict):
            raise InvalidInput(f"'{key}' is set twice.", field="values")
        found = below
    found[last] = value


def _yaml(key: str, text: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        value = YAML(typ="safe", pure=True).load(text)
        # Dates and the like are words here, as in the file.
        return json.loads(json.dumps(value, default=str))
    except (YAMLError, ValueError, RecursionError) as error:
        raise InvalidInput(f"The value of '{key[:80]}' is no YAML.", field="values", fix="Put it in quotes.") from error
