"""The cassette file: JSON lines, a header and one exchange per line.

An exchange holds the digest of its request, a summary of the request by which a difference can be named, and the whole
answer. Only what a request says to the model is in the digest: names of providers, attempts and keys are not.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milepost.domain.errors import InvalidInput, StorageUnavailable
from milepost.domain.messages import AssistantMessage
from milepost.ledger.codec import canonical_bytes, from_json, to_json
from milepost.ports.models import ModelCompleted, ModelItem, ModelRequest, ReasoningDelta, TextDelta
from milepost.providers.pieces import pieces
from milepost.security.redaction import Redactor

FORMAT = "milepost-cassette"
VERSION = 1
MAX_CASSETTE_BYTES = 64 * 1024 * 1024
MAX_EXCHANGES = 10_000
PREVIEW_CHARACTERS = 200

Summary = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request, by digest and summary, and its answer as JSON values."""

    digest: str
    request: Summary
    items: tuple[Any, ...]

    def answer(self, provider: str) -> list[ModelItem]:
        """The recorded items, as answers of `provider`; text in small pieces again."""
        return [item for value in self.items for item in _items(value, provider)]


def summarize(request: ModelRequest, redact: Redactor) -> Summary:
    """What a request says, in digests and previews of its texts, with known secrets hidden."""
    return {
        "model": request.model,
        "system_prompt": _brief(request.system_prompt, redact),
        "tools": [{"name": tool.name, **_brief(to_json(tool), redact)} for tool in request.tools],
        "sampling": to_json(request.sampling),
        "messages": [
            {"kind": message.kind, **_brief(to_json(message), redact, _shown(message))} for message in request.messages
        ],
    }


def digest_of(summary: Summary) -> str:
    return hashlib.sha256(canonical_bytes(summary)).hexdigest()


def exchange(summary: Summary, items: Iterable[ModelItem], redact: Redactor) -> Exchange:
    """An exchange to record, with known secrets hidden.

    Neighboring pieces of text are joined first: a secret may lie across them.
    """
    joined: list[list[Any]] = []
    for item in items:
        if isinstance(item, ModelCompleted):
            joined.append(["completed", to_json(item)])
            continue
        channel = "text" if isinstance(item, TextDelta) else "reasoning"
        if joined and joined[-1][0] == channel:
            joined[-1][1].append(item.text)
        else:
            joined.append([channel, [item.text]])
    values = [[kind, "".join(value) if isinstance(value, list) else value] for kind, value in joined]
    hidden = json.loads(redact.known(canonical_bytes(values).decode("utf-8")))
    return Exchange(digest_of(summary), summary, tuple(hidden))


def difference(asked: Summary, recorded: list[Summary]) -> str:
    """The first difference to the recorded request that agrees longest."""
    if not recorded:
        return "the cassette is empty"
    nearest = max(recorded, key=lambda summary: (_agreement(asked, summary), summary["model"] == asked["model"]))
    for index, (ours, theirs) in enumerate(zip(asked["messages"], nearest["messages"], strict=False)):
        if ours != theirs:
            return f"message {index + 1} ({ours['kind']}) is {_show(ours)}, recorded was {_show(theirs)}"
    counts = len(asked["messages"]), len(nearest["messages"])
    if counts[0] != counts[1]:
        return f"the conversation has {counts[0]} messages, the nearest recorded one {counts[1]}"
    names = [tool["name"] for tool in asked["tools"]], [tool["name"] for tool in nearest["tools"]]
    if names[0] != names[1]:
        return f"the tools are {names[0]}, recorded were {names[1]}"
    for key in ("model", "sampling", "system_prompt", "tools"):
        if asked[key] != nearest[key]:
            return f"'{key}' is {_show(asked[key])}, recorded was {_show(nearest[key])}"
    return "nothing that the summary shows"


def load(path: Path) -> dict[str, Exchange]:
    """All exchanges by digest, in order; a later one replaces an earlier one with the same request.

    Raises:
        OSError: the file cannot be read.
        InvalidInput: naming the file and the line.
    """
    with path.open("rb") as file:
        data = file.read(MAX_CASSETTE_BYTES + 1)
    lines = data.splitlines()
    if len(data) > MAX_CASSETTE_BYTES or len(lines) > MAX_EXCHANGES + 1:
        limit = f"{MAX_CASSETTE_BYTES} bytes or {MAX_EXCHANGES} exchanges"
        raise InvalidInput(f"The cassette {path} is over {limit}.", field="cassette", fix="Record into several files.")
    found: dict[str, Exchange] = {}
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
            if number == 1:
                if (value["format"], value["version"]) != (FORMAT, VERSION):
                    raise ValueError
                continue
            one = Exchange(value["digest"], value["request"], tuple(value["items"]))
            one.answer("")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidInput(
                f"The cassette {path}, line {number}, is not what version {VERSION} of the format has.",
                field="cassette",
                fix="Record it again.",
            ) from error
        found.pop(one.digest, None)
        found[one.digest] = one
    return found


def save(path: Path, exchanges: Mapping[str, Exchange]) -> None:
    """Replace the file as a whole, readable by its owner only. Raises StorageUnavailable."""
    lines = [canonical_bytes({"format": FORMAT, "version": VERSION})]
    for one in exchanges.values():
        lines.append(canonical_bytes({"digest": one.digest, "request": one.request, "items": list(one.items)}))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # mkstemp makes the file 0600.
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(b"\n".join(lines) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StorageUnavailable(f"The cassette {path} cannot be written: {error.strerror}.") from error


def _brief(value: object, redact: Redactor, shown: str | None = None) -> dict[str, str]:
    text = value if isinstance(value, str) else canonical_bytes(value).decode("utf-8")
    text = redact.known(text)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return {"digest": digest, "preview": redact.known(text if shown is None else shown)[:PREVIEW_CHARACTERS]}


def _shown(message: object) -> str:
    if isinstance(message, AssistantMessage):
        return message.text + "".join(f" {call.tool}({call.arguments.text})" for call in message.calls)
    return str(message.text.text)  # type: ignore[attr-defined]


def _agreement(one: Summary, other: Summary) -> int:
    count = 0
    for ours, theirs in zip(one["messages"], other["messages"], strict=False):
        if ours != theirs:
            break
        count += 1
    return count


def _show(value: object) -> str:
    if isinstance(value, dict) and "preview" in value:
        value = value["preview"]
    return repr(value)[: PREVIEW_CHARACTERS + 2]


def _items(value: Any, provider: str) -> list[ModelItem]:
    kind, content = value
    match kind:
        case "text":
            return [TextDelta(piece) for piece in pieces(content)]
        case "reasoning":
            return [ReasoningDelta(piece) for piece in pieces(content)]
        case "completed":
            return [from_json({**content, "provider": provider}, ModelCompleted)]
    raise ValueError(f"unknown item {kind!r}")
