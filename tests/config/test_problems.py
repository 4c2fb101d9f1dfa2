"""Faults are told with place, key and the nearest known word, and never with a secret."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from milepost.config.document import MAX_FILE_BYTES
from milepost.config.loading import Config, load_config
from milepost.config.problems import ConfigProblems
from milepost.domain.errors import ConfigInvalid

Load = Callable[[str], Config]

PROVIDER = "providers: {local: {type: openai_compatible, base_url: 'http://x/v1', %s}}"

CASES = [
    ("api:\n  prot: 1\n", (2, 3), "api.prot", "Did you mean 'port'?"),
    ("apii: {}\n", (1, 1), "apii", "Did you mean 'api'?"),
    ("sandbox:\n  network: brigde\n", (2, 3), "sandbox.network", "Did you mean 'bridge'?"),
    ("agents:\n  a:\n    tools: [read_file, bahs]\n", (3, 24), "agents.a.tools.1", "Did you mean 'bash'?"),
    ("agents:\n  a: {provider: scriptd}\n", (2, 7), "agents.a.provider", "Did you mean 'scripted'?"),
    ("agents: {a: {}, b: {}}\ndefault_agent: c\n", (2, 1), "default_agent", "Known: a, b."),
    ("agents: {a: {}, b: {}}\n", (1, 1), "agents", "Set default_agent"),
    ("providers:\n  x: {type: openai_compatibel}\n", (2, 3), "providers.x", "Did you mean 'openai_compatible'?"),
    ("providers:\n  x:\n    base_url: http://x\n", (2, 3), "providers.x", "openai_compatible"),
    (PROVIDER % "timeouts: {conect: 1}", (1, 82), "providers.local.timeouts.conect", "Did you mean 'connect'?"),
    (PROVIDER % "profile: {suports_tools: true}", (1, 81), "providers.local.profile.suports_tools", "supports_tools"),
    ("temporal: {address: 'x:1', tls: {cafile: x}}\n", (1, 34), "temporal.tls.cafile", "Did you mean 'ca_file'?"),
]


@pytest.mark.parametrize(("text", "position", "key", "fix"), CASES)
def test_a_fault_names_its_place_and_the_nearest_known_word(
    load: Load, text: str, position: tuple[int, int], key: str, fix: str
) -> None:
    with pytest.raises(ConfigProblems) as caught:
        load(text)
    problem = caught.value.problems[0]
    assert (problem.line, problem.column) == position
    assert problem.key == key
    assert fix in (problem.fix or "")
    assert f"milepost.yaml, line {position[0]}, column {position[1]}" in str(caught.value)


HUGE = "0x" + "F" * 5000


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f"sandbox:\n  limits:\n    memory: {HUGE}\n", "line 3, column 5: the number is too large"),
        (f"worker:\n  queues: [{HUGE}]\n", "line 2, column 12: the number is too large"),
        (f"? {HUGE}\n: 1\n", "line 1, column 3: the number is too large"),
        (f"? [{HUGE}]\n: 1\n", "line 1, column 3: the number is too large"),
    ],
)
def test_a_number_that_cannot_even_be_printed_is_told_with_its_place(load: Load, text: str, place: str) -> None:
    with pytest.raises(ConfigInvalid, match=place):
        load(text)


@pytest.mark.parametrize("memory", ["9223372036854775807", "2000000TiB"])
def test_more_memory_than_a_machine_has_is_refused(load: Load, memory: str) -> None:
    with pytest.raises(ConfigProblems, match="less than or equal") as caught:
        load(f"sandbox: {{limits: {{memory: {memory}}}}}\n")
    assert caught.value.problems[0].key == "sandbox.limits.memory"


SECRETS = [
    PROVIDER % "api_key: sk-canary-7f3a",
    PROVIDER % "headers: {Authorization: Bearer sk-canary-7f3a}",
    PROVIDER % "headers: {x-api-key: sk-canary-7f3a}",
    "providers: {l: {type: openai_compatible, base_url: 'http://u:sk-canary-7f3a@x/v1'}}",
    "database: {url: 'postgresql://u:sk-canary-7f3a@db/x'}",
    "database: {password: sk-canary-7f3a}",
    "temporal: {address: 'x:1', api_key: sk-canary-7f3a}",
    "temporal: {address: 'x:1', api_key: sk-canary-7f3a, api_key: sk-canary-7f3a}",
    PROVIDER % "api_key: [sk-canary-7f3a]",
    PROVIDER % "api_key: env:sk-canary-7f3a",
]


@pytest.mark.parametrize("text", SECRETS)
def test_an_inline_secret_is_refused_and_not_repeated(load: Load, text: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        load(text)
    problems = getattr(caught.value, "problems", ())
    assert "canary" not in str(caught.value) + repr(caught.value) + repr(problems)
    assert caught.value.__cause__ is None or "duplicate" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1\nb: 2\n", "line 2"),
        ("api: {port: 1, port: 2}", "duplicate key"),
        ("\tapi: 1", "line 1"),
        ("- a\n", "must hold a mapping"),
        ("[" * 5000, "no valid YAML"),
        ("api: {port: true}", "a number is wanted"),
        ("api: {port: 70000}", "less than or equal to 65535"),
        ("sandbox: {limits: {memory: 12}}", "greater than or equal to"),
        ("sandbox: {limits: {cpus: .nan}}", "finite"),
        ("agents: {'a b': {}}", "'agents.a b'"),
        ("agents: {a: {max_rounds: 0}}", "greater than or equal to 1"),
        ("api: 5", "'api'"),
        ("database: {url: mysql://x}", "sqlite:///PATH or postgresql://"),
        (PROVIDER % "model: 5", "string"),
        ("providers: {l: {type: openai_compatible, base_url: 'ftp://x'}}", "begins with http"),
        ("providers: {l: {type: openai_compatible, base_url: 'http://[x'}}", "no address"),
        ("providers: {l: {type: recorded, cassette: x, source: nobody}}\n", "not configured"),
        ("providers: {l: {type: openai_compatible, base_url: 'http://x'}}\nagents: {a: {provider: l}}", "has no model"),
        ("temporal: {api_key: 'env:X'}", "of no use without"),
    ],
)
def test_malformed_files_get_one_sentence(load: Load, text: str, words: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        load(text)
    assert words in str(caught.value)
    assert "milepost.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_aliases_cannot_multiply(load: Load) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(ConfigInvalid, match="values"):
        load("\n".join(lines))


def test_files_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "milepost.yaml"
    path.write_bytes(b"api: {}\nx: \xff\n")
    with pytest.raises(ConfigInvalid, match="line 2: the file is not UTF-8"):
        load_config(path)
    path.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigInvalid, match="over 1048576 bytes"):
        load_config(path)


def test_a_faulty_variable_is_named(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILEPOST_API__PROT", "1")
    with pytest.raises(ConfigInvalid, match=r"environment variable MILEPOST_API__PROT: 'api\.prot'"):
        load("")
    monkeypatch.delenv("MILEPOST_API__PROT")
    monkeypatch.setenv("MILEPOST_SERVER__PORT", "1")
    with pytest.raises(ConfigInvalid, match="there is no section 'server'"):
        load("")
    monkeypatch.delenv("MILEPOST_SERVER__PORT")
    monkeypatch.setenv("MILEPOST_API__HOSTS", "a,b")
    with pytest.raises(ConfigInvalid, match="must be JSON"):
        load("")


def test_every_fault_is_listed(load: Load) -> None:
    with pytest.raises(ConfigProblems) as caught:
        load("api: {prot: 1}\nsandbox: {network: x}\nlogging: {level: LOUD}\n")
    assert [problem.line for problem in caught.value.problems] == [1, 2, 3]
    assert "(2 more: milepost config validate)" in str(caught.value)
