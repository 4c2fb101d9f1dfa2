"""Sampling settings and images against what a profile allows; what is left out is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from milepost.domain.content import Content
from milepost.domain.errors import ModelRequestRejected
from milepost.domain.messages import Message, ResponseFormat, Sampling, UserMessage
from milepost.domain.providers import EndpointProfile, ServiceProfile
from milepost.domain.tools import ToolDefinition
from milepost.providers.wire import wire_tool_name


def supported(sampling: Sampling, unsupported: frozenset[str], diagnostics: list[str]) -> dict[str, Any]:
    """The settings that are set and that the endpoint takes, by name; each one left out adds a diagnostic.

    `response_format` is not among them, see `json_output`.
    """
    wanted = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "reasoning_effort": sampling.reasoning_effort,
        "stop": list(sampling.stop) or None,
    }
    chosen: dict[str, Any] = {}
    for name, value in wanted.items():
        if value is None:
            continue
        if name in unsupported:
            diagnostics.append(f"The endpoint does not take '{name}'; it was left out.")
        else:
            chosen[name] = value
    return chosen


def json_output(
    sampling: Sampling, profile: EndpointProfile | ServiceProfile, diagnostics: list[str]
) -> ResponseFormat | None:
    """The wanted format as far as the endpoint takes it; what is left out adds a diagnostic."""
    wanted = sampling.response_format
    if wanted is None:
        return None
    if profile.json_output == "none":
        diagnostics.append("The endpoint does not take 'response_format'; it was left out.")
        return None
    if profile.json_output == "object" and wanted.json_schema is not None:
        diagnostics.append("The endpoint takes no JSON schema; any JSON object was asked for.")
        return replace(wanted, json_schema=None)
    return wanted


def without_images(messages: Sequence[Message], diagnostics: list[str]) -> list[Message]:
    """The conversation with a line of text in the place of each image, for an endpoint that takes none."""
    result: list[Message] = []
    left_out = 0
    for message in messages:
        if isinstance(message, UserMessage) and message.images:
            left_out += len(message.images)
            lines = [f"[Image {image.name or image.media_type} was left out.]" for image in message.images]
            message = UserMessage(Content("\n".join([text for text in (message.text.text,) if text] + lines)))
        result.append(message)
    if left_out:
        diagnostics.append(f"The endpoint takes no images; {left_out} left out.")
    return result


def offered_tools(
    tools: tuple[ToolDefinition, ...], supports_tools: bool, diagnostics: list[str]
) -> tuple[ToolDefinition, ...]:
    """The tools to offer; none, with a diagnostic, where the endpoint takes none.

    Raises:
        ModelRequestRejected: a name that no endpoint takes.
    """
    if tools and not supports_tools:
        diagnostics.append("The endpoint takes no tools; none were offered.")
        return ()
    for tool in tools:
        if wire_tool_name(tool.name) != tool.name:
            raise ModelRequestRejected(
                f"Tool '{tool.name[:80]}' cannot be offered: a name has at most 64 letters, digits, '_' and '-'.",
                field="tools",
            )
    return tools
