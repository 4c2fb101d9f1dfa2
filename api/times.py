"""Times of the ledger as text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from milepost.domain.errors import InvalidInput

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rfc3339(microseconds: int) -> str:
    """Microseconds since the epoch as RFC 3339 in UTC, with microseconds."""
    moment = _EPOCH + timedelta(microseconds=microseconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond:06d}Z"


def rfc3339_or_none(microseconds: int | None) -> str | None:
    """The same for a time that may not have come yet."""
    return None if microseconds is None else rfc3339(microseconds)


def microseconds(text: str, field: str) -> int:
    """RFC 3339 time as microseconds since the epoch. Raises InvalidInput for another form, or one without an offset."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError
        return (moment - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        raise InvalidInput(
            "This is no time with an offset.", field=field, fix="Use the form 2026-01-31T12:00:00Z."
        ) from None
