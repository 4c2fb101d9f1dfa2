"""Prices in whole cents."""


def total(lines):
    """The sum of (cents, count) lines."""
    return sum(cents * count for cents, count in lines)


def discounted(cents, percent):
    """A price after a discount, rounded half up to whole cents."""
    if not 0 <= percent <= 100:
        raise ValueError("percent must be between 0 and 100")
    return cents * (100 - percent) // 100


def text(cents):
    """A price for people: 1234 becomes 12.34."""
    return f"{cents // 100}.{cents % 100}"
