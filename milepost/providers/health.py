"""Whether an endpoint can be used now."""

from __future__ import annotations

import asyncio
import difflib
import json

import httpx2

from milepost.domain.errors import MilepostError
from milepost.ports.models import ModelHealth
from milepost.providers.faults import detail, status_error
from milepost.providers.provider import EndpointConfig
from milepost.security.redaction import Redactor

CHECK_SECONDS = 5.0
MAX_NAMED = 8


async def check(config: EndpointConfig, http: httpx2.AsyncClient, redact: Redactor) -> ModelHealth:
    """Ask for the model list: reachable, key accepted, default model listed. Never raises for a failure to answer."""
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            response = await http.get(f"{config.base_url.rstrip('/')}/models")
    except MilepostError as error:
        return ModelHealth(config.name, False, error.message, error.fix)
    except (TimeoutError, httpx2.TimeoutException):
        return _bad(config, f"No answer within {CHECK_SECONDS:g} s.", redact)
    except httpx2.HTTPError as error:
        return _bad(config, detail(f"Cannot be reached ({type(error).__name__}: {error}).", redact), redact)
    if response.status_code in (404, 405, 501):
        return ModelHealth(config.name, True, f"{config.base_url} answers; it does not list its models.")
    if response.status_code != 200:
        said = detail(_error_text(response), redact)
        refused = status_error(config.name, response.status_code, said, key_reference=config.api_key)
        return ModelHealth(config.name, False, refused.message, refused.fix)
    return _listed(config, [redact(model) for model in _model_ids(response)])


def _bad(config: EndpointConfig, text: str, redact: Redactor) -> ModelHealth:
    return ModelHealth(config.name, False, text, f"Check that the server behind {redact(config.base_url)} runs.")


def _listed(config: EndpointConfig, models: list[str]) -> ModelHealth:
    wanted = config.default_model
    if not models or wanted is None or wanted in models:
        count = f"{len(models)} models listed" if models else "no model listed"
        name = f", '{wanted}' among them" if wanted in models else ""
        return ModelHealth(config.name, True, f"{config.base_url} answers; {count}{name}.")
    near = difflib.get_close_matches(wanted, models, n=MAX_NAMED) or models[:MAX_NAMED]
    return ModelHealth(
        config.name,
        False,
        f"{config.base_url} answers, but does not list the model '{wanted}'.",
        f"Set providers.{config.name}.model to one it lists, for example: {', '.join(near)}.",
    )


def _model_ids(response: httpx2.Response) -> list[str]:
    try:
        data = json.loads(response.content)["data"]
        return [str(entry["id"]) for entry in data]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def _error_text(response: httpx2.Response) -> str:
    try:
        return str(json.loads(response.content)["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return response.content.decode("utf-8", "replace")
