"""Whether an endpoint can be used now, and which models it lists."""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx2

from milepost.domain.errors import (
    MilepostError,
    ModelAnswerMalformed,
    ModelAnswerTooLarge,
    ModelTimedOut,
    ModelUnavailable,
)
from milepost.ports.models import ModelHealth, ModelInfo
from milepost.providers.events import token_count
from milepost.providers.faults import detail, status_error
from milepost.providers.provider import EndpointConfig
from milepost.security.redaction import Redactor

CHECK_SECONDS = 5.0
MAX_LIST_BYTES = 8 * 1024 * 1024
MAX_LISTED = 2_000
MAX_NAME = 200
MAX_NAMED = 8

ReadList = Callable[[Any], Sequence[str | ModelInfo]]
"""Reads the JSON of a list. Raises KeyError, TypeError or ValueError for a list of another form."""


def listed_ids(listed: Any) -> Sequence[str | ModelInfo]:
    """The models of OpenAI's form of a list, which most services use. Raises KeyError or TypeError for another."""
    return [str(entry["id"]) for entry in listed["data"]]


async def models(
    config: EndpointConfig,
    http: httpx2.AsyncClient,
    redact: Redactor,
    *,
    path: str = "/models",
    ids: ReadList = listed_ids,
) -> list[ModelInfo] | None:
    """The models an endpoint lists, at most `MAX_LISTED`; None if it has no list. `path` is where, `ids` reads it.

    Raises:
        ModelError: the endpoint cannot be reached, refuses, or answers something else than a list.
    """
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            status, body = await _fetch(config, http, path)
    except (TimeoutError, httpx2.TimeoutException):
        raise ModelTimedOut(f"No answer within {CHECK_SECONDS:g} s.", fix=_runs(config, redact)) from None
    except httpx2.HTTPError as error:
        said = detail(f"Cannot be reached ({type(error).__name__}: {error}).", redact)
        raise ModelUnavailable(said, fix=_runs(config, redact)) from None
    if status in (404, 405, 501):
        return None
    if status != 200:
        said = detail(_error_text(body), redact)
        raise status_error(config.name, status, said, key_reference=config.api_key)
    try:
        found = ids(json.loads(body))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ModelAnswerMalformed(
            f"{redact(config.base_url)} answers, but not with a list of models.",
            fix="Check that `base_url` is the address of the API and that the provider's type is right.",
        ) from None
    return [_shown(entry, redact) for entry in found[:MAX_LISTED]]


async def check(
    config: EndpointConfig,
    http: httpx2.AsyncClient,
    redact: Redactor,
    *,
    model: str = "",
    path: str = "/models",
    ids: ReadList = listed_ids,
) -> ModelHealth:
    """Ask for the model list: reachable, key accepted, model (else the default one) listed. Never raises ModelError."""
    wanted = model or config.default_model or ""
    try:
        found = await models(config, http, redact, path=path, ids=ids)
    except ModelAnswerMalformed:
        found = None
    except MilepostError as error:
        return ModelHealth(config.name, False, error.message, error.fix)
    where = redact(config.base_url)
    if found is None:
        return ModelHealth(config.name, True, f"{where} answers; it does not list its models.")
    names = [info.model_id for info in found]
    if not names or not wanted or wanted in names:
        count = f"{len(names)} models listed" if names else "no model listed"
        among = f", '{wanted}' among them" if wanted in names else ""
        return ModelHealth(config.name, True, f"{where} answers; {count}{among}.")
    near = difflib.get_close_matches(wanted, names, n=MAX_NAMED) or names[:MAX_NAMED]
    return ModelHealth(
        config.name,
        False,
        f"{where} answers, but does not list the model '{wanted}'.",
        f"Set agents.ID.model or providers.{config.name}.model to one it lists, for example: {', '.join(near)}.",
    )


async def _fetch(config: EndpointConfig, http: httpx2.AsyncClient, path: str) -> tuple[int, bytes]:
    async with http.stream("GET", config.base_url.rstrip("/") + path) as response:
        body = bytearray()
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > MAX_LIST_BYTES:
                raise ModelAnswerTooLarge(
                    f"Provider '{config.name}' sent a list of models of more than {MAX_LIST_BYTES} bytes."
                )
        return response.status_code, bytes(body)


def _shown(entry: str | ModelInfo, redact: Redactor) -> ModelInfo:
    info = ModelInfo(entry) if isinstance(entry, str) else entry
    # One line each: a name with a line end could pass for a line of ours.
    return ModelInfo(
        detail(redact.cut(info.model_id, MAX_NAME), redact), token_count(info.context_tokens) or None, info.abilities
    )


def _runs(config: EndpointConfig, redact: Redactor) -> str:
    return f"Check that the server behind {redact(config.base_url)} runs."


def _error_text(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return body.decode("utf-8", "replace")
