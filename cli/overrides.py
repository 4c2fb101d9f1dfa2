"""`--override KEY=VALUE` and `--stateless`: what a turn changes of its agent."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.routes import Json
from milepost.domain.errors import InvalidInput

OVERRIDES = ("max_rounds", "tools", "sampling")

Override = Annotated[
    list[str] | None,
    typer.Option(
        "--override",
        metavar="KEY=VALUE",
        help="For this turn: max_rounds=5, 'tools=[read_file]', sampling.temperature=0. May be given again.",
    ),
]
Stateless = Annotated[
    bool,
    typer.Option("--stateless", help="Without earlier turns and without memory; later turns get nothing of it."),
]


def override_body(given: list[str] | None, *, stateless: bool) -> Json:
    """The fields of a turn's request body. Raises InvalidInput."""
    from cli.values import nested

    found = nested(given or ())
    for key in found:
        if key not in OVERRIDES:
            fix = f"It can be {', '.join(OVERRIDES)}."
            raise InvalidInput(f"'{key[:80]}' cannot be changed for one turn.", field="override", fix=fix)
    return found | ({"stateless": True} if stateless else {})
