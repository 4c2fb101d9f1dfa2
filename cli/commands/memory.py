"""`milepost memory ...`: the group of what agents remember."""

from __future__ import annotations

import typer

from cli.commands import long_term, memory_tiers


def register(app: typer.Typer) -> None:
    """Add the commands of all kinds of memory."""
    text = "What agents keep in mind and can recall, and long-term memory by namespace and key."
    group = typer.Typer(help=text, no_args_is_help=True)
    app.add_typer(group, name="memory")
    memory_tiers.register(group)
    long_term.register(group)
