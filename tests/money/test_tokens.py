"""Estimates of tokens: near an exact count, better once learnt, and never far off for long."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import milepost
from milepost.domain.content import Content
from milepost.domain.errors import ConfigInvalid
from milepost.domain.messages import UserMessage
from milepost.domain.providers import OpenAICompatibleProvider
from milepost.engine.tokens import FACTOR_MAX, FACTOR_MIN, learnt, request_items, text_tokens, total
from milepost.providers.tokenizers import Tokenizers
from tests.providers.conftest import READ
from tests.support.needs import unavailable

SAMPLES = {
    "English": "The transaction that dispatches a model call reserves what it may use. A restart changes nothing, and "
    "parallel turns see one another's reservations, so a limit is not passed by calls that keep to theirs. " * 10,
    "code": Path(milepost.__path__[0], "engine", "budgets.py").read_text(encoding="utf-8"),
    "JSON": '{"type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}}}\n' * 20,
    "CJK": "模型调用之前先估算令牌的数量，不需要网络。次の呼び出しは記録された価格で計算します。토큰 수를 셉니다。"
    * 10,
}


def provider(**values: object) -> OpenAICompatibleProvider:
    return OpenAICompatibleProvider("fake", "http://127.0.0.1:9/v1", **values)  # type: ignore[arg-type]


async def exact() -> Callable[[str], float]:
    if importlib.util.find_spec("quicktok") is None:
        unavailable("quicktok-v1", "it is not installed")
    count = await Tokenizers({"fake": provider(tokenizers={"gpt-*": "o200k"})}).of("fake", "gpt-x")
    assert count is not None
    return count


@pytest.mark.parametrize("kind", SAMPLES)
async def test_an_estimate_is_near_the_exact_count(kind: str) -> None:
    count = await exact()
    assert 0.75 <= text_tokens(SAMPLES[kind]) / count(SAMPLES[kind]) <= 1.3


async def test_exact_counts_are_of_configured_models_and_of_any_text() -> None:
    count = await exact()
    assert count("hello world") == 2
    assert count("<|endoftext|> \ud800") > 3, "text that looks like a special token is text"
    assert await Tokenizers({"fake": provider(tokenizers={"gpt-*": "o200k"})}).of("fake", "other") is None


def test_a_vocabulary_without_the_extra_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigInvalid, match=r"milepost\[tokens\]"):
        Tokenizers({"fake": provider(tokenizers={"*": "o200k"})})
    Tokenizers({"fake": provider()})


@given(st.text())
def test_any_text_has_an_estimate_that_grows_with_it(text: str) -> None:
    assert 0 <= text_tokens(text) <= 4 * len(text) + 1
    assert text_tokens(text + "x y") > text_tokens(text) - 1e-6


def test_the_parts_of_a_request_are_named() -> None:
    items = request_items("Be kind.", [UserMessage(Content("go " * 300))], [READ])
    assert [item.name for item in items] == [
        "the system prompt",
        "the definition of tool read_file",
        "message 1 (request)",
    ]
    assert total(items, 2.0) >= 2 * total(items) - 1


def test_a_factor_is_learnt_quickly_and_kept_within_bounds() -> None:
    factor, samples = 1.0, 0
    for _ in range(8):
        factor, samples = learnt(factor, samples, 1000, 1500)
    assert (abs(factor - 1.5) < 1e-9, samples) == (True, 8)
    odd, _ = learnt(factor, samples, 1000, 10**9)
    assert odd - factor <= (FACTOR_MAX - factor) * 0.2 + 1e-9, "one odd report moves it by a fifth at most"
    assert learnt(factor, samples, 10, 400) == (factor, samples), "too short to tell"
    low, many = 1.0, 0
    for _ in range(50):
        low, many = learnt(low, many, 10**6, 50)
    assert low == pytest.approx(FACTOR_MIN)
