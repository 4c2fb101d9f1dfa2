"""Owners of memory: one key and one file name for each, in every file system."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.domain.errors import InvalidInput
from milepost.domain.memory import OwnerKind, Scope

part = st.text(min_size=1, max_size=200) | st.sampled_from(
    ["worker", "..", ".", "/", "a/b", "con", "NUL", "a:b", "a%3Ab", "%", "A", "a", "é", "e\u0301", "x" * 300, "\0", " "]
)
scopes = st.one_of(
    st.builds(Scope.agent, part, part), st.builds(Scope.worker, part, part, part), st.builds(Scope.shared, part)
)


@given(scopes, scopes)
def test_owners_share_neither_key_nor_file_name(one: Scope, other: Scope) -> None:
    assert (one == other) == (one.key == other.key) == (one.component == other.component)


@given(scopes)
def test_a_file_name_is_one_everywhere(scope: Scope) -> None:
    assert re.fullmatch("[a-z0-9_][a-z0-9_-]{31,96}", scope.component)
    assert scope.component.lower() == scope.component


@given(scopes)
def test_an_owner_is_found_by_its_name(scope: Scope) -> None:
    if scope.kind is not OwnerKind.SHARED:
        assert Scope.named(scope.session_id or "", scope.owner) == scope


def test_keys_are_those_of_the_layout() -> None:
    assert Scope.agent("ses_1", "coder").key == "ses_1:coder"
    assert Scope.worker("ses_1", "lead", "reader").key == "ses_1:lead:worker:reader"
    assert Scope.agent("ses_1", "lead:worker:reader").key != Scope.worker("ses_1", "lead", "reader").key


@pytest.mark.parametrize("owner", ["", "a:b", "a:worker:", "a:helper:b", "a:worker:b:c"])
def test_what_names_no_owner_is_refused(owner: str) -> None:
    with pytest.raises(InvalidInput):
        Scope.named("ses_1", owner)
