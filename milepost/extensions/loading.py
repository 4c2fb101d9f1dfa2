"""Finding what installed packages bring, by their entry points."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TypeVar

from milepost.domain.errors import ToolUnavailable
from milepost.domain.suggestions import closest

T = TypeVar("T")


def load(group: str, name: str, kind: type[T], owner: str) -> T:
    """The object behind an entry point. Importing its package runs its code. `owner` is for texts.

    Raises:
        ToolUnavailable: no installed package has the entry point, it cannot be imported, or it is no `kind`.
    """
    known = entry_points(group=group)
    if name not in known.names:
        close = closest(name, sorted(known.names))
        fix = f"Did you mean '{close}'?" if close else f"Installed: {', '.join(sorted(known.names)) or 'none'}."
        raise ToolUnavailable(f"{owner}: no installed package has the entry point '{name}' in '{group}'.", fix=fix)
    try:
        found = known[name].load()
    except Exception as error:
        raise ToolUnavailable(
            f"{owner}: the entry point '{name}' cannot be loaded ({type(error).__name__}: {str(error)[:500]}).",
            fix="Repair or reinstall the package that brings it.",
        ) from error
    if not isinstance(found, kind):
        raise ToolUnavailable(
            f"{owner}: the entry point '{name}' is {type(found).__name__}, not {kind.__module__}.{kind.__name__}.",
            fix="Let the entry point name an instance.",
        )
    return found
