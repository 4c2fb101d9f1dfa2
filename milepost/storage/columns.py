"""Column types that behave the same on SQLite and PostgreSQL."""

from __future__ import annotations

from sqlalchemy import BigInteger, Integer, LargeBinary, Text
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DontWrapMixin
from sqlalchemy.types import TypeDecorator

from milepost.domain.errors import InvalidInput

MAX_IDENTIFIER_BYTES = 1024
"""An indexed identifier must fit an index page of either database."""


class BadIdentifier(InvalidInput, DontWrapMixin):
    """An identifier that cannot be stored: too long, or with NUL or a lone surrogate."""


def check_identifier(value: str) -> str:
    """Return `value` if both databases can store it as an identifier.

    Raises:
        BadIdentifier: (an `InvalidInput`) it is too long or has characters that PostgreSQL text refuses.
    """
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise BadIdentifier(f"The identifier {value!r} has a lone surrogate.", fix="Use valid Unicode text.") from None
    if "\0" in value:
        raise BadIdentifier(f"The identifier {value!r} has a NUL character.", fix="Use an identifier without it.")
    if size > MAX_IDENTIFIER_BYTES:
        raise BadIdentifier(
            f"The identifier {value[:40]!r}... has {size} bytes; at most {MAX_IDENTIFIER_BYTES} are accepted.",
            fix="Use a shorter one.",
        )
    return value


class Identifier(TypeDecorator[str]):
    """Ids, codes, states and names that the product makes: text, compared and sorted by code point."""

    # SQLite compares bytes; the C collation does the same, so that pages have one order everywhere.
    impl = Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else check_identifier(value)


class Utf8(TypeDecorator[str]):
    """Text that people, models or tools write. Bytes, since PostgreSQL text refuses NUL and lone surrogates."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | None:
        return None if value is None else value.encode("utf-8", "surrogatepass")

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> str | None:
        return None if value is None else value.decode("utf-8", "surrogatepass")


class Binary(TypeDecorator[bytes]):
    """Bytes that are no text: hashes, and what is compressed."""

    impl = LargeBinary
    cache_ok = True


SERIAL = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows by itself only in a column declared INTEGER."""
