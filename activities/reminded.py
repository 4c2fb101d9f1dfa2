"""What a model gets in a round: the conversation, with what the agent is reminded of in this turn."""

from __future__ import annotations

from dataclasses import replace

from activities.conversation import Conversations, TurnContext
from activities.guard import Stopped, guarded
from milepost.contracts.activities import CallModelParams
from milepost.domain.content import Content
from milepost.domain.memory_events import MemoryRecalled
from milepost.domain.team_events import AgentBriefed
from milepost.domain.teams import is_worker
from milepost.services.contents import Contents
from milepost.services.reminding import Moment, Reminders
from milepost.services.stops import StopSignal


class Reminded:
    """Loads conversations; in an agent's first round of a turn it also finds what the agent is reminded of."""

    def __init__(self, conversations: Conversations, contents: Contents, reminders: Reminders | None) -> None:
        self._conversations = conversations
        self._contents = contents
        self._reminders = reminders

    async def whole(self, params: CallModelParams, stop: StopSignal) -> tuple[TurnContext, str]:
        """The turn as `Conversations.whole` has it, and the core blocks that follow the system prompt.

        A stop cuts short what is being recalled. Raises TurnNotFound, BlobNotFound, TurnClaimed.
        """
        context = await self._whole(params)
        if context.started.memory is None or self._reminders is None:
            return context, ""
        if params.round == 1 and not _has_reminder(context):
            moment = Moment(context.turn, context.started, params.claim, omitted=_not_shown(context))
            if moment.omitted:
                moment = replace(moment, request=await self._contents.load(_asked(context)))
            try:
                reminder = await guarded(self._reminders.remind(moment), stop)
            except Stopped:
                return context, ""
            if reminder is not None and reminder.text:
                context = await self._whole(params)
            elif reminder is not None:
                context = replace(context, events=(*context.events, reminder))
        return context, await self._reminders.base(params.session_id, context.events, params.agent)

    async def _whole(self, params: CallModelParams) -> TurnContext:
        return await self._conversations.whole(params.turn_id, params.agent, params.round)


def _asked(context: TurnContext) -> Content:
    """What the agent is to do: its subtask if it works for a Coordinator, else the person's request."""
    agent = context.started.agent
    briefs = [event.text for event in context.events if isinstance(event, AgentBriefed) and event.agent == agent]
    return briefs[-1] if briefs and is_worker(agent) else context.turn.request.text


def _not_shown(context: TurnContext) -> int:
    """The newest turn whose request its model is not given: left out, or told by a summary; 0 if it is given all."""
    summarized = context.compacted is not None and context.compacted.covered is not None
    if not context.omitted and not summarized:
        return 0
    return min((part.number for part in context.parts if part.round == 0), default=context.turn.number) - 1


def _has_reminder(context: TurnContext) -> bool:
    agent = context.started.agent
    return any(isinstance(event, MemoryRecalled) and event.agent == agent for event in context.events)
