"""A part of the mutation run: a protection that is switched off is noticed. The whole is a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sandbox.escape.mutations import MUTATIONS, ROOT, copied, passes, survives


def test_every_mutation_still_has_its_place() -> None:
    for mutation in MUTATIONS:
        text = (ROOT / mutation.file).read_text(encoding="utf-8")
        for old in (mutation.old, *([mutation.also[0]] if mutation.also else [])):
            assert old in text, mutation.name
        assert (ROOT / mutation.test.partition("::")[0]).exists(), mutation.name
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) > 20


@pytest.mark.slow
def test_a_part_of_the_mutations_is_noticed(tmp_path: Path) -> None:
    chosen = [mutation for mutation in MUTATIONS if "become links" in mutation.name or "speak" in mutation.name]
    assert len(chosen) == 3
    copy = copied(tmp_path)
    for mutation in chosen:
        assert passes(copy, mutation), mutation.name
        assert not survives(copy, mutation), mutation.name
