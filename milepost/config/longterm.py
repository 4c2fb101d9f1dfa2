"""The `long_term_memory` section, and what agents may use of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from milepost.config.document import Fault
from milepost.config.problems import nearest
from milepost.config.sections import Count, Name, Section
from milepost.domain.longterm import (
    DEFAULT_STORE,
    MAX_NAME_BYTES,
    MAX_RETENTION_DAYS,
    MIN_RETENTION_DAYS,
    AgentLongTerm,
    LongTermConfig,
    NamespaceRule,
    StoreConfig,
)

RetentionDays = Annotated[Count, Field(ge=MIN_RETENTION_DAYS, le=MAX_RETENTION_DAYS)]
NamespaceName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_BYTES // 4)]


class StoreSection(Section):
    """A store that an installed package brings."""

    entry_point: str | None = None
    """Its name in the entry-point group `milepost.memory_stores`. Default: the store's name."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """What the package is told. Secrets belong into its own environment, never here."""


class NamespaceSection(Section):
    store: str | None = None
    """`database` (the ledger's), or a name under `stores`. Default: `long_term_memory.store`."""
    embedder: str | None = None
    """What makes its vectors. Default: `embeddings.default`."""
    retention_days: RetentionDays | None = None
    """After how many days a record is over, if it does not say. Default: never."""


class LongTermSection(Section):
    store: str = DEFAULT_STORE
    """Where records are: `database` (the ledger's), or a name under `stores`."""
    stores: Annotated[dict[Name, StoreSection], Field(max_length=16)] = Field(default_factory=dict)
    """Stores of installed packages, by name."""
    namespaces: Annotated[dict[NamespaceName, NamespaceSection], Field(max_length=1000)] = Field(default_factory=dict)
    """What differs for single namespaces."""


class AgentLongTermSection(Section):
    namespaces: Annotated[tuple[NamespaceName, ...], Field(max_length=64)] = ()
    """Namespaces that the agent's tools may use; the first where it names none. Default: one with the agent's id."""
    retention_days: RetentionDays | None = None
    """After how many days what it writes is over, if it does not say."""


def check(section: LongTermSection, embedders: Sequence[str]) -> Iterator[Fault]:
    """What the section cannot see alone."""
    stores = [DEFAULT_STORE, *section.stores]
    if DEFAULT_STORE in section.stores:
        yield ("long_term_memory", "stores", DEFAULT_STORE), "has the name of the built-in store.", "Give it another."
    if section.store not in stores:
        message = f"names a store '{section.store}' that is not configured."
        yield ("long_term_memory", "store"), message, nearest(section.store, stores)
    for name, namespace in section.namespaces.items():
        path = ("long_term_memory", "namespaces", name)
        if namespace.store is not None and namespace.store not in stores:
            message = f"names a store '{namespace.store}' that is not configured."
            yield (*path, "store"), message, nearest(namespace.store, stores)
        if namespace.embedder is not None and namespace.embedder not in embedders:
            message = f"names an embedder '{namespace.embedder}' that is not configured."
            yield (*path, "embedder"), message, nearest(namespace.embedder, list(embedders))


def long_term(section: LongTermSection) -> LongTermConfig:
    """The section as values of the domain."""
    return LongTermConfig(
        default=NamespaceRule(section.store),
        namespaces={
            name: NamespaceRule(namespace.store or section.store, namespace.embedder, namespace.retention_days)
            for name, namespace in section.namespaces.items()
        },
        stores={name: StoreConfig(store.entry_point or name, store.settings) for name, store in section.stores.items()},
    )


def agent_long_term(agent: str, section: AgentLongTermSection) -> AgentLongTerm:
    """What an agent may use."""
    return AgentLongTerm(section.namespaces or (agent,), section.retention_days)
