"""Hiding secrets in what others send back: errors, answers, outputs, logs.

A value is hidden as it is and in the encodings in which peers commonly echo one. What nobody can foresee (a value in
pieces of a foreign order, encrypted, reversed) is not found; docs/security.md says what holds.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

HIDDEN = "[hidden]"

MIN_CERTAIN = 12
"""Characters from which on a value is hidden in any text. Shorter ones are placeholders (`none`, `ollama`), which
would take pieces out of ordinary words; they are hidden in errors only."""

MAX_SECRETS = 256
"""Values that are remembered; of more, the oldest are forgotten."""

_MAX_PIECES = 8
_MAX_BEGINNING = 8 * 1024
_SEPARATORS = re.compile(r"[\s;,=]+")
_LOOKS_SECRET = re.compile(
    r"(?i)(\bbearer\s+|\bauthorization\W{1,4}(?:bearer\s+|basic\s+)?|\bx?-?api[-_]?key\W{1,4})[^\s\"',;}]{4,}"
    r"|\bsk-[A-Za-z0-9_\-*.]{6,}"
)


class Redactor:
    """Hides the secrets it knows. It may learn more at any time; whoever uses it then hides them too."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: dict[str, None] = {}
        self._forms: tuple[tuple[str, bytes], ...] = ()
        self._any = re.compile(r"(?!)")
        self._ends: dict[str, list[tuple[int, str]]] | None = None
        self._words: tuple[re.Pattern[str], ...] = ()
        self.learn(*secrets)

    def learn(self, *secrets: str) -> None:
        """Hide these too."""
        known = {**self._secrets, **dict.fromkeys(secret for secret in secrets if secret)}
        if known.keys() == self._secrets.keys():
            return
        self._secrets = dict.fromkeys(list(known)[-MAX_SECRETS:])
        # Longest first: a secret that contains another must not leave a remainder.
        forms = sorted({form for secret in self._secrets for form in _forms(secret)}, key=len, reverse=True)
        ordered = [form for form in forms if len(form) >= MIN_CERTAIN]
        self._forms = tuple((form, form.encode("utf-8")) for form in ordered)
        self._any = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
        self._ends = None
        self._words = tuple(re.compile(_as_word(form)) for form in forms[len(ordered) :])

    def __call__(self, text: str) -> str:
        """Hide the known secrets and what looks like a credential; for errors."""
        return _LOOKS_SECRET.sub(lambda match: (match.group(1) or "") + HIDDEN, self.known(text))

    def known(self, text: str) -> str:
        """Hide the known secrets only; for text that must otherwise stay as it is."""
        text = self.certain(text)
        for word in self._words:
            text = word.sub(HIDDEN, text)
        return text

    def certain(self, text: str) -> str:
        """Hide the known secrets of at least `MIN_CERTAIN` characters; for answers, outputs and logs."""
        for form, _ in self._forms:
            if form in text:
                text = text.replace(form, HIDDEN)
        return text

    def data(self, data: bytes) -> bytes:
        """`certain` for bytes."""
        for _, form in self._forms:
            if form in data:
                data = data.replace(form, HIDDEN.encode())
        return data

    def cut(self, text: str, limit: int) -> str:
        """The first `limit` characters; a secret that the cut goes through is hidden too."""
        if len(text) <= limit:
            return text
        return _closed(self.certain(text[:limit]), self)

    def open_end(self, text: str) -> int:
        """How many characters at the end of `text` may be the beginning of a secret."""
        if self._ends is None:
            self._ends = _ends(form for form, _ in self._forms)
        for size, form in self._ends.get(text[-1:], ()):
            if size <= len(text) and text.endswith(form[:size]):
                return size
        return 0

    def split(self, text: str) -> tuple[str, str]:
        """Text with its secrets hidden, and the end that must be seen again with what follows it."""
        stop = len(text) - self.open_end(text)
        shown: list[str] = []
        position = 0
        for match in self._any.finditer(text):
            if match.start() >= stop:
                # It may be the beginning of a longer one.
                break
            shown += (text[position : match.start()], HIDDEN)
            position = match.end()
        stop = max(stop, position)
        return "".join((*shown, text[position:stop])), text[stop:]


class StreamRedactor:
    """Hides secrets in text that comes in pieces. The few characters that may begin one wait for the next piece."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""

    def feed(self, piece: str) -> str:
        """What can be shown now."""
        shown, self._held = self._redactor.split(self._held + piece)
        return shown

    def end(self) -> str:
        """What was held back, when nothing follows; a long beginning of a secret is hidden."""
        held, self._held = self._held, ""
        return _closed(self._redactor.certain(held), self._redactor)


def _closed(text: str, redactor: Redactor) -> str:
    end = redactor.open_end(text)
    return text[: len(text) - end] + HIDDEN if end >= MIN_CERTAIN else text


def _ends(forms: Iterable[str]) -> dict[str, list[tuple[int, str]]]:
    """By the last character of a text: the beginnings that it may end with, as (size, form), longest first."""
    found: dict[str, list[tuple[int, str]]] = {}
    for form in forms:
        for size in range(1, min(len(form), _MAX_BEGINNING)):
            found.setdefault(form[size - 1], []).append((size, form))
    for candidates in found.values():
        candidates.sort(reverse=True)
    return found


def _forms(secret: str) -> set[str]:
    """A secret as peers may echo it."""
    found: set[str] = set()
    pieces = {piece for piece in _SEPARATORS.split(secret) if len(piece) >= MIN_CERTAIN}
    if len(pieces) > _MAX_PIECES:
        # A key file of many lines: each line may show up alone.
        found |= pieces
        pieces = set()
    for value in {secret, *pieces, *_credentials(secret)}:
        found.update(_encodings(value))
    return found


def _encodings(value: str) -> Iterator[str]:
    data = value.encode("utf-8", "surrogatepass")
    quoted, plus = quote(data, safe=""), quote_plus(data)
    yield from (value, quoted, plus, quoted.replace("%2F", "/"))
    yield from (re.sub(r"%[0-9A-F]{2}", lambda match: match.group().lower(), text) for text in (quoted, plus))
    escaped, shown = json.dumps(value)[1:-1], repr(value)[1:-1]
    # Twice for JSON inside JSON; `repr` is how libraries log headers.
    yield from (escaped, escaped.replace("/", "\\/"), json.dumps(escaped)[1:-1], shown, json.dumps(shown)[1:-1])
    yield html.escape(value)
    yield from (data.hex(), data.hex().upper())
    if len(data) >= MIN_CERTAIN:
        yield from _base64(data)


def _base64(data: bytes) -> Iterator[str]:
    """The characters that the value alone decides, at each of the three places at which it may begin."""
    for before in range(3):
        text = base64.b64encode(bytes(before) + data).decode("ascii").rstrip("=")
        whole = (before + len(data)) * 8 // 6
        core = text[(0, 2, 3)[before] : whole]
        yield core
        yield core.translate(str.maketrans("+/", "-_"))


def _credentials(secret: str) -> Iterator[str]:
    """User and password of a value for Basic authentication."""
    scheme, _, rest = secret.partition(" ")
    if scheme.lower() != "basic":
        return
    try:
        pair = base64.b64decode(rest, validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return
    yield pair
    yield pair.partition(":")[2]


def _as_word(form: str) -> str:
    # A placeholder key such as "none" must not eat pieces of other words.
    return re.escape(form) if len(form) >= 8 else rf"(?<!\w){re.escape(form)}(?!\w)"
