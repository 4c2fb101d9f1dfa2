"""Whether an answer has the JSON format that was asked for. Not every server that takes a format keeps to it."""

from __future__ import annotations

import json

from milepost.domain.messages import FinishReason, ResponseFormat
from milepost.ports.models import ModelCompleted

MAX_PROBLEM = 300


def format_note(answer: ModelCompleted, wanted: ResponseFormat) -> str | None:
    """What to record of an answer that does not have its format; None for one that has, or that is no last word.

    The answer stays as it is: whoever reads it decides.
    """
    if answer.message.calls or answer.finish is not FinishReason.STOP:
        return None
    try:
        value = json.loads(answer.message.text)
    except (ValueError, RecursionError):
        return "The answer is no JSON, although a JSON format was asked for."
    if wanted.json_schema is None:
        return None if isinstance(value, dict) else "The answer is JSON, but no object."
    # Here, not above: most calls ask for no format.
    from jsonschema.exceptions import best_match

    from milepost.security.schemas import validator

    problem = best_match(validator(wanted.json_schema).iter_errors(value))
    if problem is None:
        return None
    where = ".".join(str(part) for part in problem.absolute_path) or "the answer"
    return f"The answer does not satisfy its schema: {where}: {problem.message}"[:MAX_PROBLEM]
