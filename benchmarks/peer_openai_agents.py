"""The Temporal SDK's plugin for the OpenAI Agents SDK, with an instant model. Needs requirements-peers.txt."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    from agents import Agent, Model, ModelResponse, Runner, Usage
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
    from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
    from temporalio.openai_agents.testing import TestModelProvider
    from temporalio.openai_agents.workflow import activity_as_tool

_SECONDS = timedelta(seconds=30)


@activity.defn
async def read_file(path: str) -> str:
    """Read a file."""
    return "hello\n"


class InstantModel(Model):
    """Asks for `tools` calls first, then says it is done."""

    tools = 0

    async def get_response(self, system_instructions: str | None, input: Any, *_: Any, **__: Any) -> ModelResponse:
        first = isinstance(input, str) or not any(item.get("type") == "function_call_output" for item in input)
        output: list[Any] = []
        if first:
            output = [
                ResponseFunctionToolCall(
                    arguments='{"path": "a.txt"}', call_id=f"c{index}", name="read_file", type="function_call"
                )
                for index in range(self.tools)
            ]
        if not output:
            text = ResponseOutputText(text="done", annotations=[], type="output_text", logprobs=[])
            message = ResponseOutputMessage(
                id="m", content=[text], role="assistant", status="completed", type="message"
            )
            output = [message]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


@workflow.defn
class OpenAIAgentsTurn:
    @workflow.run
    async def run(self, text: str) -> str:
        tool = activity_as_tool(read_file, start_to_close_timeout=_SECONDS)
        agent = Agent(name="bench", instructions="You are a careful software agent.", tools=[tool])
        result = await Runner.run(agent, text)
        return str(result.final_output)


def plugin(model: InstantModel) -> OpenAIAgentsPlugin:
    return OpenAIAgentsPlugin(
        model_params=ModelActivityParameters(start_to_close_timeout=_SECONDS),
        model_provider=TestModelProvider(model),
    )
