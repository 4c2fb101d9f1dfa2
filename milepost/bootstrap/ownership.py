"""Whether our root packages are ours. Other distributions ship folders of the same names (`workflows`, `api`)."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

import milepost
from milepost.bootstrap.system import DISTRIBUTION

ROOT_PACKAGES = ("milepost", "workflows", "activities", "workers", "api", "cli")


def foreign_packages() -> list[str]:
    """One sentence per root package that another distribution also owns, or that is imported from elsewhere."""
    found = []
    owners = importlib.metadata.packages_distributions()
    home = Path(milepost.__file__).parent.parent
    for name in ROOT_PACKAGES:
        others = sorted(set(owners.get(name, ())) - {DISTRIBUTION})
        if others:
            found.append(f"The package '{name}' also belongs to {', '.join(others)}.")
            continue
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None or Path(spec.origin).parent.parent != home:
            where = spec.origin if spec is not None else "nowhere"
            found.append(f"The package '{name}' is imported from {where}, not from {home}.")
    return found
