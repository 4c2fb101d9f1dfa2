"""The memory of agents in the configuration: what is left out, what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from milepost.config.loading import Config
from milepost.domain.errors import ConfigInvalid
from milepost.domain.memory import DEFAULT_BLOCKS, BlockSpec, MemorySettings

Load = Callable[[str], Config]


def test_memory_is_on_unless_it_is_turned_off(load: Load) -> None:
    assert load("").agents["default"].memory == MemorySettings()
    off = load("agents: {a: {memory: {enabled: false}}}")
    assert off.agents["a"].memory is None


def test_blocks_are_added_changed_and_taken_away(load: Load) -> None:
    text = """
agents:
  a:
    memory:
      recall: 0
      min_score: 0.3
      blocks:
        persona: null
        project: {limit: 100}
        team: {description: Known to all., shared: true, value: Hello.}
        rules: {read_only: true}
"""
    memory = load(text).agents["a"].memory
    assert memory is not None and (memory.recall, memory.min_score) == (0, 300_000)
    human, project = DEFAULT_BLOCKS[1:]
    assert memory.blocks == (
        human,
        BlockSpec("project", project.description, 100),
        BlockSpec("team", "Known to all.", 2000, "Hello.", shared=True),
        BlockSpec("rules", "", 2000, read_only=True),
    )


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        ("blocks: {Team: {}}", "Team"),
        ("blocks: {a: {limit: 20001}}", "20000"),
        ("blocks: {a: {limit: 3, value: four}}", "a value of 4 characters for the block 'a', whose limit is 3"),
        ("blocks: {a: {limit: 20000}, b: {limit: 20000}, c: {limit: 4000}}", "51000 characters together"),
        ("recall: 21", "20"),
        ('blocks: {a: {description: "<b>"}}', "description"),
        ("block: {}", "block"),
    ],
)
def test_what_cannot_be_is_refused(load: Load, memory: str, words: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        load(f"agents: {{x: {{memory: {{{memory}}}}}}}")
    assert words in str(refused.value)


def test_a_shared_block_is_the_same_for_all_who_share_it(load: Load) -> None:
    text = """
agents:
  one: {memory: {blocks: {team: {shared: true, limit: 100}}}}
  two: {memory: {blocks: {team: {shared: true, limit: 200}}}}
  own: {memory: {blocks: {team: {limit: 300}}}}
default_agent: one
"""
    with pytest.raises(ConfigInvalid) as refused:
        load(text)
    assert "agents.two.memory.blocks.team.limit" in str(refused.value)
    assert "differs from that of the agent 'one'" in str(refused.value)
    load(text.replace("200", "100"))
