"""The execution side's fixtures, over both databases."""

from tests.turns.conftest import gateway, sandboxes, stack

__all__ = ["gateway", "sandboxes", "stack"]
