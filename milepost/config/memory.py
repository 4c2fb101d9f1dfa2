"""An agent's memory in the configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from milepost.config.sections import Count, Number, Section
from milepost.domain.memory import (
    BLOCK_LABEL,
    DEFAULT_BLOCK_LIMIT,
    DEFAULT_BLOCKS,
    DEFAULT_MIN_SCORE,
    DEFAULT_RECALL,
    MAX_BLOCK_LIMIT,
    MAX_BLOCKS,
    MAX_BLOCKS_TOTAL,
    MAX_RECALL,
    MILLIONTHS,
    BlockSpec,
    MemorySettings,
)

BlockLabel = Annotated[str, StringConstraints(pattern=BLOCK_LABEL)]


class BlockSection(Section):
    """A core block; what is left out of persona, human and project is as it is without the section."""

    description: Annotated[str, StringConstraints(max_length=500, pattern=r'^[^<>"\n]*$')] | None = None
    """What the model is told that it is for."""
    limit: Annotated[Count, Field(ge=1, le=MAX_BLOCK_LIMIT)] | None = None
    """Characters it may hold."""
    value: Annotated[str, StringConstraints(max_length=MAX_BLOCK_LIMIT)] = ""
    """What it holds until somebody writes to it."""
    shared: bool = False
    """One block for all agents, in all Sessions, that declare it so."""
    read_only: bool = False
    """Agents cannot change it; a person can."""


class MemorySection(Section):
    enabled: bool = True
    """Whether the agent has memory of its own: core blocks, a daily log, recall."""
    blocks: dict[BlockLabel, BlockSection | None] = Field(default_factory=dict)
    """Core blocks by label, beside persona, human and project; null takes one of these away."""
    recall: Annotated[Count, Field(ge=0, le=MAX_RECALL)] = DEFAULT_RECALL
    """How many records at most a turn is reminded of, of those that its model is not shown any more."""
    min_score: Annotated[Number, Field(ge=0, le=1)] = DEFAULT_MIN_SCORE / MILLIONTHS
    """Records that fit less are not recalled."""

    @model_validator(mode="after")
    def _bounds(self) -> MemorySection:
        specs = block_specs(self)
        if len(specs) > MAX_BLOCKS:
            raise ValueError(f"has {len(specs)} blocks; at most {MAX_BLOCKS} are accepted.")
        total = sum(spec.limit for spec in specs)
        if total > MAX_BLOCKS_TOTAL:
            raise ValueError(f"has blocks of {total} characters together; at most {MAX_BLOCKS_TOTAL} are accepted.")
        for spec in specs:
            if len(spec.value) > spec.limit:
                size = f"a value of {len(spec.value)} characters"
                raise ValueError(f"has {size} for the block '{spec.label}', whose limit is {spec.limit}.")
        return self


def block_specs(section: MemorySection) -> tuple[BlockSpec, ...]:
    """The blocks in their order: persona, human, project, then the own ones as the file has them."""
    specs = {spec.label: spec for spec in DEFAULT_BLOCKS}
    for label, block in section.blocks.items():
        if block is None:
            specs.pop(label, None)
            continue
        spec = specs.get(label, BlockSpec(label, "", DEFAULT_BLOCK_LIMIT))
        specs[label] = replace(
            spec,
            description=spec.description if block.description is None else block.description,
            limit=spec.limit if block.limit is None else block.limit,
            value=block.value,
            shared=block.shared,
            read_only=block.read_only,
        )
    return tuple(specs.values())


def memory_settings(section: MemorySection) -> MemorySettings | None:
    """What the section means; None for an agent without memory."""
    if not section.enabled:
        return None
    return MemorySettings(block_specs(section), section.recall, round(section.min_score * MILLIONTHS))
