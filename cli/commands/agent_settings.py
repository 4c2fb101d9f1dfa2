"""`milepost agents show|add|set|remove`: the agents of the configuration, edited in the file."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli.invocation import Invocation, command
from cli.values import nested
from milepost.domain.errors import InvalidInput
from milepost.ports.agents import AgentEditor, AgentSettings

AgentId = Annotated[str, typer.Argument(metavar="AGENT", help="Id of the agent.")]
Values = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE...", help="Keys of the agent, like model=large or sampling.temperature=0.2."),
]
Unset = Annotated[list[str] | None, typer.Option("--unset", metavar="KEY", help="Remove a key. Repeatable.")]


def register(group: typer.Typer) -> None:
    """Add the commands of this module to `milepost agents`."""
    command(group, "show")(show)
    command(group, "add")(add)
    command(group, "set")(change)
    command(group, "remove")(remove)


def show(call: Invocation, agent: AgentId) -> None:
    """Show one agent: what the file says, and what is in force."""
    _print(call, _editor(call).get(agent))


def add(call: Invocation, agent: AgentId, key: Values = None) -> None:
    """Add an agent. It is checked before the file is written, and counts from the next turn on."""
    _changed(call, "Added", _editor(call).add(agent, nested(key or ())))


def change(call: Invocation, agent: AgentId, key: Values = None, unset: Unset = None) -> None:
    """Change an agent; everything else of the file stays. VALUE is YAML: 'tools=[read_file, bash]'."""
    if not key and not unset:
        raise InvalidInput("Nothing to change.", field="values", fix="Name KEY=VALUE, or --unset KEY.")
    _changed(call, "Changed", _editor(call).change(agent, nested(key or (), unset or ())))


def remove(call: Invocation, agent: AgentId) -> None:
    """Remove an agent. Its Sessions stay; their next turn needs another one."""
    _editor(call).remove(agent)
    if call.json:
        call.out.document({"agent_id": agent, "removed": True})
    else:
        call.out.line(f"Removed the agent {agent}.")


def _editor(call: Invocation) -> AgentEditor:
    from milepost.config.agents import AgentFile

    return AgentFile(call.config.path)


def _changed(call: Invocation, what: str, agent: AgentSettings) -> None:
    if call.json:
        call.out.document(_shape(agent))
        return
    call.out.line(f"{what} the agent {agent.agent_id} in {call.config.path}. It counts from the next turn on.")


def _print(call: Invocation, agent: AgentSettings) -> None:
    if call.json:
        call.out.document(_shape(agent))
        return
    from io import StringIO

    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.default_flow_style = False
    text = StringIO()
    yaml.dump({"written": dict(agent.written), "in force": dict(agent.effective)}, text)
    call.out.write(f"# {agent.agent_id}{' (default)' if agent.default else ''}\n{text.getvalue()}")


def _shape(agent: AgentSettings) -> dict[str, Any]:
    return {
        "agent_id": agent.agent_id,
        "default": agent.default,
        "written": dict(agent.written),
        "effective": dict(agent.effective),
    }
