"""`--budget NAME=AMOUNT`."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Annotated

import typer

from cli.routes import Json
from milepost.domain.errors import InvalidInput

TurnBudget = Annotated[
    list[str] | None,
    typer.Option(
        "--budget",
        metavar="NAME=AMOUNT",
        help="Limit of the turn: tokens, cost, model_calls, tool_calls or seconds. May be given again.",
    ),
]
SessionBudget = Annotated[
    list[str] | None,
    typer.Option(
        "--budget",
        metavar="NAME=AMOUNT",
        help="Limit of the Session: tokens, cost, model_calls or tool_calls. May be given again.",
    ),
]


def budget_body(given: list[str] | None) -> Json | None:
    """The `budget` of a request body. Raises InvalidInput."""
    from milepost.domain.budgets import COUNTED, limits_of

    if not given:
        return None
    amounts: dict[str, Decimal] = {}
    for each in given:
        name, equals, amount = each.partition("=")
        try:
            amounts[name] = Decimal(amount)
        except InvalidOperation:
            equals = ""
        if not equals:
            raise InvalidInput(
                f"'{each[:80]}' is no limit.",
                field="budget",
                fix="Write NAME=AMOUNT, for example --budget tokens=50000.",
            )
    limits_of(amounts)
    body: Json = {name: int(amount) for name, amount in amounts.items() if name in COUNTED}
    if "cost" in amounts:
        body["cost"] = f"{amounts['cost']:f}"
    if "seconds" in amounts:
        body["seconds"] = float(amounts["seconds"])
    return body
