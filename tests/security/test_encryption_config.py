"""From the configuration to a converter that encrypts, or to an error that says what is missing."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from milepost.bootstrap.temporal import data_converter
from milepost.config.loading import Config, load_config
from milepost.domain.errors import ConfigInvalid, SecretMissing
from milepost.temporal.converter import DATA_CONVERTER
from tests.cli.conftest import Milepost

Load = Callable[[str], Config]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILEPOST_HOME", str(tmp_path / "home"))
    for name in ("NEW_KEY", "OLD_KEY"):
        monkeypatch.setenv(name, base64.b64encode(secrets.token_bytes(32)).decode())

    def from_section(section: str) -> Config:
        (tmp_path / "milepost.yaml").write_text(f"temporal: {{encryption: {section}}}\n")
        return load_config()

    return from_section


async def test_keys_behind_references_encrypt(load: Load) -> None:
    converter = data_converter(load("{keys: {new: 'env:NEW_KEY', old: 'env:OLD_KEY'}, current: new}"))
    (payload,) = await converter.encode(["text"])
    assert payload.metadata["encryption-key-id"] == b"new"
    assert await converter.decode([payload]) == ["text"]


def test_without_the_section_nothing_is_encrypted(load: Load) -> None:
    assert data_converter(load("null")) is DATA_CONVERTER


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("{keys: {new: 'env:NEW_KEY'}, current: nwe}", "Did you mean 'new'?"),
        ("{keys: {}, current: new}", "temporal.encryption.keys"),
        ("{keys: {new: 'env:NEW_KEY'}}", "'temporal.encryption.current' is missing"),
        ("{keys: {'a b': 'env:NEW_KEY'}, current: 'a b'}", "temporal.encryption.keys"),
        ("{keys: {new: c2VjcmV0LXRoYXQtc3RhbmRzLWhlcmU=}, current: new}", "may not stand in the configuration"),
    ],
)
def test_what_cannot_be_used_is_refused(load: Load, section: str, said: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        load(section)
    assert said in str(refused.value)
    assert "c2VjcmV0" not in str(refused.value)


def test_a_key_without_a_value_and_one_of_another_form(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load("{keys: {new: 'env:NEW_KEY', old: 'env:OLD_KEY'}, current: new}")
    monkeypatch.setenv("OLD_KEY", "correct horse battery staple")
    with pytest.raises(ConfigInvalid, match="openssl rand -base64 32") as refused:
        data_converter(config)
    assert "horse" not in str(refused.value)
    monkeypatch.delenv("OLD_KEY")
    with pytest.raises(SecretMissing, match="env:OLD_KEY"):
        data_converter(config)


def test_a_turn_on_the_command_line_leaves_nothing_readable_in_temporals_store(milepost: Milepost) -> None:
    milepost.configure(
        "sandbox: {backend: none}\n"
        "temporal: {port: 0, ui_port: 0, encryption: {keys: {k1: 'env:PAYLOAD_KEY'}, current: k1}}\n"
    )
    missing = milepost.run("run", "Go", "--json")
    assert (missing.code, missing.error()["code"]) == (2, "secret_missing")
    assert "env:PAYLOAD_KEY" in missing.error()["message"]
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    milepost.environment = {"PAYLOAD_KEY": key}
    script = milepost.script('responses: [{text: "All is well."}]')
    done = milepost.run("run", "Go", "--script", script, "--json")
    assert done.code == 0, done.err
    turn = done.json()
    store = (milepost.home / "temporal.db").read_bytes()
    assert turn["turn_id"].encode() in store, "the workflow's id"
    for text in (turn["session_id"], '"session_id"', "claim the turn", "record the end", key):
        assert text.encode() not in store
    doctor = milepost.run("doctor", "--json").json()
    (check,) = [check for check in doctor["checks"] if check["name"] == "temporal"]
    assert check["ok"] and "encrypted with the key 'k1'" in check["detail"]
