"""Peers without Temporal, for orientation: LangGraph with durable checkpointers, DBOS. Needs requirements-peers.txt."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, TypedDict

from dbos import DBOS, DBOSConfig
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

Turn = Callable[[], Awaitable[object]]


class _State(TypedDict):
    messages: Annotated[list[str], operator.add]


def _graph(tools: int, saver: Any) -> Any:
    async def model(state: _State) -> _State:
        asked = tools if len(state["messages"]) == 1 else 0
        return {"messages": [f"call {index}" for index in range(asked)] or ["done"]}

    async def tool(_state: _State) -> _State:
        return {"messages": ["hello\n"]}

    def route(state: _State) -> Any:
        calls = len(state["messages"]) == 1 + tools and tools > 0
        return [Send("tool", {"messages": []}) for _ in range(tools)] if calls else END

    graph = StateGraph(_State)
    graph.add_node("model", model)
    graph.add_node("tool", tool)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", route, ["tool", END])
    graph.add_edge("tool", "model")
    return graph.compile(checkpointer=saver)


def _langgraph_turn(graph: Any, tools: int) -> Turn:
    number = 0

    async def turn() -> object:
        nonlocal number
        number += 1
        config = {"configurable": {"thread_id": f"{tools}-{number}"}}
        result = await graph.ainvoke({"messages": ["go"]}, config, durability="sync")
        assert result["messages"][-1] == "done", result
        return result

    return turn


async def langgraph_sqlite(stack: AsyncExitStack, folder: Path, tools: int) -> Turn:
    saver = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(str(folder / f"graph-{tools}.db")))
    await saver.setup()
    # Its own default would lose commits at a power cut.
    await saver.conn.execute("PRAGMA synchronous = FULL")
    return _langgraph_turn(_graph(tools, saver), tools)


async def langgraph_postgres(stack: AsyncExitStack, url: str, tools: int) -> Turn:
    saver = await stack.enter_async_context(AsyncPostgresSaver.from_conn_string(url))
    await saver.setup()
    return _langgraph_turn(_graph(tools, saver), tools)


@DBOS.step()
async def _model(tools: int) -> int:
    return tools


@DBOS.step()
async def _tool(index: int) -> str:
    return "hello\n"


@DBOS.workflow()
async def _dbos_turn(tools: int) -> str:
    for index in range(await _model(tools)):
        await _tool(index)
    if tools:
        await _model(0)
    return "done"


def dbos(stack: AsyncExitStack, folder: Path) -> Callable[[int], Turn]:
    """On SQLite, its default. The calls of an answer run one after another: its steps in parallel need care."""
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": f"sqlite:///{folder / 'dbos.sqlite'}",
        "run_admin_server": False,
        "log_level": "ERROR",
    }
    DBOS(config=config)
    DBOS.launch()
    stack.callback(DBOS.destroy)

    def turn_of(tools: int) -> Turn:
        async def turn() -> object:
            assert await _dbos_turn(tools) == "done"
            return None

        return turn

    return turn_of
