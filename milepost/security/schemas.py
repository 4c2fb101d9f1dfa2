"""JSON Schemas of tools that the configuration and packages bring: checked, and never fetched from anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry

MAX_DEPTH = 50
_REFERENCES = ("$ref", "$dynamicRef")


def check_parameters(schema: Mapping[str, Any]) -> None:
    """Raise ValueError, with what to do, unless this is a JSON Schema (2020-12) of an object that stands alone."""
    if schema.get("type") != "object":
        raise ValueError("the parameters must have 'type: object'")
    for reference in _references(schema, 0):
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise ValueError("a reference may only point into the schema itself (#/...)")
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        where = ".".join(str(part) for part in error.absolute_path) or "the schema"
        raise ValueError(f"{where}: {error.message[:300]}") from None


def validator(schema: Mapping[str, Any]) -> Draft202012Validator:
    """A validator that resolves nothing outside of the schema."""
    return Draft202012Validator(schema, registry=Registry())


def _references(value: Any, depth: int) -> Iterator[Any]:
    if depth > MAX_DEPTH:
        raise ValueError(f"the parameters are nested over {MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        yield from (value[name] for name in _REFERENCES if name in value)
        for item in value.values():
            yield from _references(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item, depth + 1)
