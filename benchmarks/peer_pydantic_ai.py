"""pydantic-ai's Temporal agent, with an instant model. Needs requirements-peers.txt."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from pydantic_ai import Agent
    from pydantic_ai.durable_exec.temporal import PydanticAIPlugin, PydanticAIWorkflow, TemporalDurability
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel


class Asked:
    """How many calls the instant model asks for; workers and workflows of the benchmark share the process."""

    tools = 0


def _answer(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    returned = any(isinstance(part, ToolReturnPart) for message in messages for part in message.parts)
    if Asked.tools and not returned:
        calls = [ToolCallPart("read_file", {"path": "a.txt"}, tool_call_id=f"c{index}") for index in range(Asked.tools)]
        return ModelResponse(parts=calls)
    return ModelResponse(parts=[TextPart("done")])


async def read_file(path: str) -> str:
    """Read a file."""
    return "hello\n"


AGENT = Agent(
    FunctionModel(_answer),
    name="bench",
    instructions="You are a careful software agent.",
    tools=[read_file],
    capabilities=[TemporalDurability(activity_config={"start_to_close_timeout": timedelta(seconds=30)})],
)


@workflow.defn
class PydanticAITurn(PydanticAIWorkflow):
    __pydantic_ai_agents__ = (AGENT,)

    @workflow.run
    async def run(self, text: str) -> str:
        result = await AGENT.run(text)
        return str(result.output)


def plugin() -> PydanticAIPlugin:
    return PydanticAIPlugin()
