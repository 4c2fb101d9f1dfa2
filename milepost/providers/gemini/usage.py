"""Usage in four disjoint classes from `usageMetadata`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from milepost.domain.usage import Usage
from milepost.providers.events import token_count


def usage_of(reported: Mapping[str, Any]) -> Usage:
    """Split a report; its numbers are cumulative, and a count of zero may be left out.

    `promptTokenCount` includes `cachedContentTokenCount`. `thoughtsTokenCount` comes on top of `candidatesTokenCount`,
    except where the total shows that it is part of it. Numbers that contradict each other make the result incomplete.
    """
    prompt = token_count(reported.get("promptTokenCount"))
    total = token_count(reported.get("totalTokenCount"))
    answer = token_count(reported.get("candidatesTokenCount", 0 if total is not None else None))
    found = [token_count(reported.get(name, 0)) for name in _OPTIONAL]
    cached, thoughts, tools = (count or 0 for count in found)
    if prompt is None or answer is None or None in found:
        return Usage(input_tokens=prompt or 0, output_tokens=answer or 0, complete=False)
    within = bool(thoughts) and total == prompt + answer + tools
    output = answer - thoughts if within else answer
    return Usage(
        input_tokens=max(prompt - cached, 0) + tools,
        cached_input_tokens=min(cached, prompt),
        output_tokens=max(output, 0),
        reasoning_tokens=thoughts if output >= 0 else answer,
        complete=cached <= prompt and output >= 0,
    )


_OPTIONAL = ("cachedContentTokenCount", "thoughtsTokenCount", "toolUsePromptTokenCount")
