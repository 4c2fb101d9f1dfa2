"""docs/models.md says what the code does."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from milepost.config.loading import load_config
from milepost.domain import errors
from milepost.domain.providers import (
    AnthropicProfile,
    EndpointProfile,
    GeminiProfile,
    MistralProfile,
    ModelLimits,
    ModelTimeouts,
    OllamaProfile,
    OpenAIProfile,
    OpenRouterProfile,
)
from milepost.providers.calls import MAX_CALLS
from milepost.providers.scripted.script import parse_script

SERVICES: list[tuple[str, type]] = [
    ("anthropic", AnthropicProfile),
    ("gemini", GeminiProfile),
    ("mistral", MistralProfile),
    ("openai", OpenAIProfile),
    ("openrouter", OpenRouterProfile),
    ("ollama", OllamaProfile),
]

TEXT = (Path(__file__).parents[2] / "docs/models.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return TEXT.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_the_script_example_is_a_script() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", section("`scripted`"), re.DOTALL)
    script = parse_script(example)
    assert [call.tool for call in script.response("default", 1).calls] == ["read_file"]
    assert script.response("reviewer", 1).text == "Looks right."


def test_every_profile_key_and_limit_is_described() -> None:
    text = section("`openai_compatible`")
    for field in fields(EndpointProfile):
        assert f"`{field.name}`" in text
    for field in fields(ModelTimeouts):
        seconds = getattr(ModelTimeouts(), field.name)
        assert re.search(rf"\| `timeouts\.{field.name}` \| {seconds:g} s \|", text)
    limits = ModelLimits()
    assert f"| `limits.request_bytes` | {limits.request_bytes // 1024**2} MiB |" in text
    assert f"| `limits.response_bytes` | {limits.response_bytes // 1024**2} MiB |" in text
    assert f"| `limits.event_bytes` | {limits.event_bytes // 1024**2} MiB |" in text
    assert f"| `limits.events` | {limits.events:,} |" in text
    assert f"{MAX_CALLS:,} tool calls" in text


def test_the_failures_are_the_classes() -> None:
    rows = re.findall(r"\| `(model_\w+)` \| (yes|no)", section("`openai_compatible`"))
    documented = {code: again == "yes" for code, again in rows}
    classes = errors.ModelError.__subclasses__()
    assert documented == {cls.code: cls.retryable for cls in classes if cls.code.startswith("model_")}


@pytest.mark.parametrize(("type_", "profile"), SERVICES)
def test_the_example_of_a_service_is_a_configuration_and_its_profile_is_described(
    type_: str, profile: type, tmp_path: Path
) -> None:
    text = section(f"`{type_}`")
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "milepost.yaml").write_text(example, encoding="utf-8")
    configured = [each for each in load_config(tmp_path / "milepost.yaml").providers.values() if each.type == type_]
    assert len(configured) == 1
    # What a profile shares with that of compatible endpoints is described there.
    shared = {field.name for field in fields(EndpointProfile)} if issubclass(profile, EndpointProfile) else set()
    for field in fields(profile):
        assert field.name in shared or re.search(rf"`(profile\.)?{field.name}`", text), field.name
