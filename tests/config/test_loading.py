"""What a configuration means, and where it comes from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from milepost.config.loading import Config, find_file, json_schema, load_config, shown
from milepost.domain.agents import ALL_TOOLS
from milepost.domain.errors import ConfigInvalid
from milepost.domain.providers import OpenAICompatibleProvider, RecordedProvider, Route, ScriptedProvider

Load = Callable[[str], Config]

FULL = """
# A comment, and words that YAML 1.1 would take for booleans.
database: {url: "postgresql://milepost@db.example:5432/milepost", password: "env:DB_PASSWORD"}
temporal:
  address: temporal.example:7233
  namespace: prod
  tls: {ca_file: ca.pem, server_name: temporal.example}
  api_key: file:temporal.key
api: {host: 0.0.0.0, port: 9000, hosts: [milepost.example], origins: ["https://milepost.example/"]}
providers:
  local:
    type: openai_compatible
    base_url: http://127.0.0.1:8081/v1/
    model: small
    api_key: env:LOCAL_KEY
    headers: {X-Team: tools, X-Api-Key: "env:TEAM_KEY"}
    timeouts: {connect: 2.5}
    profile: {max_tokens_field: max_completion_tokens, unsupported: [temperature], thinking_tags: null}
    model_profiles:
      tiny: {supports_tools: false}
  tape: {type: recorded, cassette: tapes/a.yaml, source: local, mode: auto, model: small}
agents:
  coder: {provider: local, tools: [read_file, bash], sampling: {temperature: 0.2, stop: ["no"]}, max_rounds: 7}
  writer: {provider: local, model: other}
default_agent: coder
sandbox: {network: bridge, limits: {memory: 512MiB, cpus: 1, pids: 100}, environment: [LANG, UNSET_NAME]}
worker: {queues: [models], activities: 3}
logging: {level: DEBUG, format: json}
"""


def test_without_any_configuration_there_is_a_scripted_default_agent(tmp_path: Path) -> None:
    config = load_config()
    assert config.path is None
    assert config.default_agent == "default"
    agent = config.agents["default"]
    assert (agent.provider, agent.model, agent.tools) == ("scripted", "demo", ALL_TOOLS)
    assert config.providers == {"scripted": ScriptedProvider("scripted", "demo")}
    assert config.data_root == tmp_path / "home"
    assert config.database_url() == f"sqlite:///{tmp_path / 'home' / 'milepost.db'}"
    assert config.settings.api.host == "127.0.0.1"
    assert config.settings.sandbox.network == "none"


def test_a_full_file_becomes_the_domains_values(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "p@ss/word")
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.delenv("UNSET_NAME", raising=False)
    config = load(FULL)
    assert config.database_url() == "postgresql://milepost:p%40ss%2Fword@db.example:5432/milepost"
    local = config.providers["local"]
    assert isinstance(local, OpenAICompatibleProvider)
    assert local.base_url == "http://127.0.0.1:8081/v1"
    assert local.headers == {"X-Team": "tools"}
    assert local.secret_headers == {"X-Api-Key": "env:TEAM_KEY"}
    assert (local.timeouts.connect, local.timeouts.idle) == (2.5, 120.0)
    assert local.profile.max_tokens_field == "max_completion_tokens"
    assert local.profile.unsupported == {"temperature"}
    assert local.profile.thinking_tags is None
    assert local.profile_of("tiny").supports_tools is False
    tape = config.providers["tape"]
    assert isinstance(tape, RecordedProvider)
    assert tape.cassette == str(tmp_path / "tapes/a.yaml")
    coder = config.agents["coder"]
    assert (coder.model, coder.tools, coder.max_rounds) == ("small", ("read_file", "bash"), 7)
    assert coder.sampling.stop == ("no",)
    assert config.agents["writer"].model == "other"
    assert config.settings.sandbox.limits.memory == 512 * 1024**2
    assert config.sandbox_environment == {"LANG": "C.UTF-8"}
    assert config.settings.api.origins == ("https://milepost.example",)


def test_what_is_shown_has_no_secret_value(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DB_PASSWORD", "LOCAL_KEY", "TEAM_KEY"):
        monkeypatch.setenv(name, "canary-7f3a")
    config = load(FULL)
    text = json.dumps(shown(config)) + repr(config)
    assert "canary-7f3a" not in text
    assert "env:LOCAL_KEY" in text


def test_the_schema_accepts_what_is_accepted_and_refuses_what_is_refused(load: Load) -> None:
    from milepost.config.document import read_document

    config = load(FULL)
    assert config.path is not None
    validator = jsonschema.Draft202012Validator(json_schema())
    assert list(validator.iter_errors(read_document(config.path).data)) == []
    assert list(validator.iter_errors({"api": {"prot": 1}}))
    assert list(validator.iter_errors({"sandbox": {"network": "brigde"}}))


def test_the_environment_wins_over_the_file(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILEPOST_API__PORT", "9999")
    monkeypatch.setenv("MILEPOST_PROVIDERS__LOCAL__BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("MILEPOST_SANDBOX__ENVIRONMENT", '["LANG"]')
    config = load(
        "api: {port: 1, host: localhost}\nproviders: {local: {type: openai_compatible, base_url: http://x}}\n"
    )
    assert (config.settings.api.port, config.settings.api.host) == (9999, "localhost")
    local = config.providers["local"]
    assert isinstance(local, OpenAICompatibleProvider)
    assert local.base_url == "http://127.0.0.1:1/v1"
    assert config.settings.sandbox.environment == ("LANG",)


def test_which_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    assert find_file(None) is None
    in_home, here, named, given = (
        home / "milepost.yaml",
        tmp_path / "milepost.yaml",
        tmp_path / "named.yaml",
        tmp_path / "given.yaml",
    )
    for path, expected in ((in_home, in_home), (here, here)):
        path.write_text("")
        assert find_file(None) == expected
    named.write_text("")
    monkeypatch.setenv("MILEPOST_CONFIG", str(named))
    assert find_file(None) == named
    given.write_text("")
    assert find_file(given) == given
    with pytest.raises(ConfigInvalid, match="does not exist"):
        find_file(tmp_path / "missing.yaml")


def test_home_wins_over_the_files_data_root(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load("data_root: elsewhere").data_root == tmp_path / "home"
    monkeypatch.delenv("MILEPOST_HOME")
    assert load("data_root: elsewhere").data_root == tmp_path / "elsewhere"


def test_a_scripted_provider_reads_its_script(load: Load, tmp_path: Path) -> None:
    (tmp_path / "script.yaml").write_text("responses: []")
    config = load("providers: {scripted: {type: scripted, script: script.yaml}}")
    assert config.providers["scripted"] == ScriptedProvider("scripted", "demo", "responses: []")
    with pytest.raises(ConfigInvalid, match=r"nothere\.yaml cannot be read"):
        load("providers: {scripted: {type: scripted, script: nothere.yaml}}")


def test_one_agent_is_the_default_whatever_its_name(load: Load) -> None:
    assert load("agents: {only: {}}").default_agent == "only"
    assert load("agents: {a: {}, default: {}}").default_agent == "default"


def test_the_format_of_answers_is_checked(load: Callable[[str], Config]) -> None:
    schema = "{type: object, properties: {a: {type: integer}}}"
    config = load(f"agents: {{a: {{sampling: {{response_format: {{json_schema: {schema}, name: sum}}}}}}}}\n")
    wanted = config.agents["a"].sampling.response_format
    assert wanted is not None and (wanted.name, wanted.strict) == ("sum", True)
    assert wanted.json_schema == {"type": "object", "properties": {"a": {"type": "integer"}}}
    for bad, said in (("{type: array}", "the schema must have"), ("{type: object, required: 3}", "required")):
        with pytest.raises(ConfigInvalid, match=said):
            load(f"agents: {{a: {{sampling: {{response_format: {{json_schema: {bad}}}}}}}}}\n")


def test_fallbacks_are_the_agents_else_the_providers(load: Callable[[str], Config]) -> None:
    text = (
        "providers:\n"
        "  one: {type: openai_compatible, base_url: 'http://127.0.0.1:1/v1', model: m, fallbacks: [{provider: two}]}\n"
        "  two: {type: ollama, model: n}\n"
        "agents:\n  a: {provider: one}\n  b: {provider: one, fallbacks: []}\n"
        "  c: {provider: one, fallbacks: [{provider: two, model: x}, {provider: scripted}]}\ndefault_agent: a\n"
    )
    agents = load(text).agents
    assert agents["a"].fallbacks == (Route("two", "n"),)
    assert agents["b"].fallbacks == ()
    assert agents["c"].fallbacks == (Route("two", "x"), Route("scripted", "demo"))
    with pytest.raises(ConfigInvalid) as caught:
        load(text.replace("[{provider: two}]", "[{provider: tow}]"))
    assert "Did you mean 'two'" in str(caught.value) and "providers.one.fallbacks.0.provider" in str(caught.value)
    with pytest.raises(ConfigInvalid, match="has no default one"):
        load(text.replace("type: ollama, model: n", "type: ollama"))
