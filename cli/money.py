"""Usage and cost in words."""

from __future__ import annotations

from decimal import Decimal

from cli.output import counted
from cli.routes import Json

SHOWN_DECIMALS = 4


def cost_words(cost: Json) -> str:
    """`0.0123 USD`, `at least 0.0123 USD`, `cost unknown`; a tiny amount keeps two significant digits."""
    amount = Decimal(cost["amount"])
    if not cost["complete"] and not amount:
        return "cost unknown"
    text = f"{_short(amount)} {cost['currency']}"
    return text if cost["complete"] else f"at least {text}"


def usage_words(usage: Json) -> str:
    """Tokens and cost of a turn in a few words; a cost of nothing is not mentioned."""
    tokens = counted(usage["total_tokens"], "token")
    if not usage["complete"]:
        tokens = f"at least {tokens}" if usage["total_tokens"] else "tokens unknown"
    cost = usage["cost"]
    nothing = cost["complete"] and not Decimal(cost["amount"])
    return tokens if nothing else f"{tokens} · {cost_words(cost)}"


def _short(amount: Decimal) -> str:
    if not amount:
        return "0"
    decimals = SHOWN_DECIMALS
    if amount < Decimal(1).scaleb(-SHOWN_DECIMALS + 1):
        decimals = max(decimals, 1 - amount.adjusted())
    return f"{amount:.{decimals}f}"
