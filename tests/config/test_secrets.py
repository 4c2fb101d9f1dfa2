"""Secret references resolve, or name themselves and never a value."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.config.secrets import MAX_SECRET_BYTES, ReferenceSecrets
from milepost.domain.errors import SecretMissing


def test_values_come_from_environment_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "one")
    (tmp_path / "key").write_text("two\n")
    secrets = ReferenceSecrets(tmp_path)
    assert secrets.resolve("env:A_KEY") == "one"
    assert secrets.resolve("file:key") == "two"
    assert secrets.resolve(f"file:{tmp_path / 'key'}") == "two"


def test_a_changed_value_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ReferenceSecrets(tmp_path)
    monkeypatch.setenv("A_KEY", "one")
    assert secrets.resolve("env:A_KEY") == "one"
    monkeypatch.setenv("A_KEY", "two")
    assert secrets.resolve("env:A_KEY") == "two"


@pytest.mark.parametrize("reference", ["env:NOT_SET", "env:EMPTY", "file:none", "file:.", "file:empty", "file:binary"])
def test_what_does_not_resolve_names_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    monkeypatch.setenv("EMPTY", "  ")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(SecretMissing) as caught:
        ReferenceSecrets(tmp_path).resolve(reference)
    assert reference in str(caught.value)


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "big").write_text("x" * (MAX_SECRET_BYTES + 1))
    with pytest.raises(SecretMissing, match="over 65536 bytes"):
        ReferenceSecrets(tmp_path).resolve("file:big")
    with pytest.raises(SecretMissing, match="unknown form"):
        ReferenceSecrets(tmp_path).resolve("sk-canary")
    monkeypatch.setenv("LINES", "a\nb")
    with pytest.raises(SecretMissing, match="control characters") as caught:
        ReferenceSecrets(tmp_path).resolve("env:LINES")
    assert "a\nb" not in str(caught.value)
