"""What the configuration refers to is known, and hidden in what is logged."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from milepost.config.loading import load_config
from milepost.observability.logging import configure, get_logger
from tests.security.canaries import canary, leaks

CONFIGURATION = """
database: {url: "env:LEDGER_URL"}
temporal:
  address: temporal.example:7233
  api_key: env:CLUSTER_KEY
  tls: {key: "file:client.pem"}
providers:
  one:
    type: openai_compatible
    base_url: http://127.0.0.1:1/v1
    model: m
    api_key: env:MODEL_KEY
    headers: {X-Token: "file:token", X-Missing: "env:NO_SUCH_NAME"}
"""


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The values behind the references of a configuration in the current folder."""
    values = {name: canary(name) for name in ("cluster", "model", "pem", "token", "password")}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILEPOST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLUSTER_KEY", values["cluster"])
    monkeypatch.setenv("MODEL_KEY", values["model"])
    password = values["password"].replace("%", "").replace("/", "").replace("\\", "").replace('"', "")
    values["password"] = password
    monkeypatch.setenv("LEDGER_URL", f"postgresql://somebody:{password}@127.0.0.1:1/ledger")
    (tmp_path / "client.pem").write_text(f"-----BEGIN PRIVATE KEY-----\n{values['pem']}\n-----END PRIVATE KEY-----\n")
    (tmp_path / "token").write_text(values["token"])
    (tmp_path / "milepost.yaml").write_text(CONFIGURATION)
    return values


@pytest.fixture
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_every_reference_of_the_configuration_is_known(known: dict[str, str]) -> None:
    config = load_config()
    config.learn_secrets()
    config.database_url()
    for name, value in known.items():
        assert leaks({"text": config.secrets.redactor.certain(f"x {value} y").encode()}, known) == [], name
        assert config.secrets.redactor.certain(f"x {value} y").startswith("x ")


@pytest.mark.parametrize("as_json", [True, False])
def test_the_log_hides_them_whoever_writes(
    known: dict[str, str], restored: None, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    config = load_config()
    configure(level="DEBUG", json=as_json, hide=config.secrets.redactor.certain)
    config.learn_secrets()
    said = " ".join(known[name] for name in ("cluster", "model", "token"))
    try:
        raise ValueError(said)
    except ValueError:
        logging.getLogger("some.library").exception("Headers: %r", [(b"X", said.encode())])
        get_logger("milepost").error("call.failed", detail=said, headers={"X": said})
    written = capsys.readouterr().err
    assert leaks({"log": written.encode()}, known) == []
    assert written.count("[hidden]") >= 12 and "Traceback" in written
