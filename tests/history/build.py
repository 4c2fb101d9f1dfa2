"""Sessions written to a ledger as turns write them, without anything else at work."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from milepost.contracts.naming import turn_workflow_id
from milepost.domain.content import Content
from milepost.domain.effects import EffectClass, EffectSpec, EffectState
from milepost.domain.events import (
    AgentStarted,
    Event,
    ModelCalled,
    SessionOpened,
    StreamKind,
    ToolFinished,
    ToolStarted,
    TurnBegun,
)
from milepost.domain.messages import (
    AssistantMessage,
    AssistantPart,
    FinishReason,
    ReasoningPart,
    Sampling,
    TextPart,
    ToolCallPart,
)
from milepost.domain.sessions import Session, SessionMode, SessionStatus, Workspace
from milepost.domain.turns import Turn, TurnOptions, TurnRequest, TurnState
from milepost.domain.usage import Usage
from milepost.engine.effects import effect_id, idempotency_key
from milepost.ledger.codec import encode
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.services.finishing import Ending, call_position, end_turn, model_position, tool_event_key
from tests.ledger.samples import new_id

USAGE = Usage(120, 40, 30, 10)


@dataclass(frozen=True)
class Call:
    """A tool call of one round; `lost` is dispatched and never answered."""

    tool: str
    arguments: str
    result: Content | str = "done"
    is_error: bool = False
    lost: bool = False


@dataclass(frozen=True)
class Said:
    """One turn: rounds of calls, then the answer (None: the model never came to one)."""

    request: Content | str
    answer: Content | str | None = "Done."
    calls: Sequence[Call] = ()
    reasoning: str = ""
    agent: str = "default"
    ending: Ending | None = field(default_factory=lambda: Ending(TurnState.COMPLETED, ""))


class Builder:
    """Writes Sessions and turns; each has a later time than all before it."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._time = count(1_700_000_000_000_000, 1_000_000)

    async def session(self, title: str = "A Session", path: str | None = None, session_id: str | None = None) -> str:
        folder = path or f"/tmp/{new_id('folder')}"
        session_id = session_id or new_id("ses")
        now = next(self._time)

        def body(tx: LedgerTx) -> None:
            workspace = tx.sessions.workspace(folder, Workspace(new_id("wsp"), folder, now))
            tx.sessions.add(
                Session(
                    session_id=session_id,
                    workspace=workspace,
                    title=title,
                    mode=SessionMode.SINGLE,
                    status=SessionStatus.ACTIVE,
                    agents=("default",),
                    image=None,
                    created_at=now,
                    closed_at=None,
                )
            )
            opened = SessionOpened(folder, title, SessionMode.SINGLE, ("default",))
            tx.events.append(session_id, StreamKind.SESSION, [NewEvent("session.opened", opened)], now)

        await self.ledger.write(body)
        return session_id

    async def turn(self, session_id: str, said: Said, turn_id: str | None = None) -> str:
        turn_id = turn_id or new_id("trn")
        begin, work, end = (next(self._time) for _ in range(3))
        request = TurnRequest(_content(said.request), TurnOptions(agent=said.agent))

        def body(tx: LedgerTx) -> None:
            turn = self._begin(tx, session_id, turn_id, request, begin)
            for position, event in enumerate(self._work(tx, turn, said, work)):
                tx.events.append(session_id, StreamKind.SESSION, [_keyed(turn, event, position)], work)
            if said.ending is not None:
                end_turn(tx, tx.turns.get(turn_id), said.ending, end)

        await self.ledger.write(body)
        return turn_id

    def _begin(self, tx: LedgerTx, session_id: str, turn_id: str, request: TurnRequest, at: int) -> Turn:
        number = tx.turns.lock_session(session_id)
        turn = Turn(
            turn_id=turn_id,
            session_id=session_id,
            number=number,
            state=TurnState.RUNNING,
            request=request,
            content_digest=hashlib.sha256(encode(request)).hexdigest(),
            idempotency_key=f"key-{number}",
            workflow_id=turn_workflow_id(self.ledger.instance_id, turn_id),
            claimed_run="run",
            generation=0,
            created_at=at,
            dispatched_at=at + 1,
            stop_requested_at=None,
            ended_at=None,
            error_code=None,
            error_message=None,
            usage=Usage(),
            superseded=False,
        )
        tx.turns.add(turn)
        begun = TurnBegun(turn_id, number, request, turn.workflow_id, turn.idempotency_key)
        tx.events.append(session_id, StreamKind.SESSION, [NewEvent(f"{turn_id}/begun", begun, turn_id)], at)
        return turn

    def _work(self, tx: LedgerTx, turn: Turn, said: Said, at: int) -> list[Event]:
        events: list[Event] = [
            AgentStarted(turn.turn_id, said.agent, "scripted", "m-1", "You are.", (), Sampling(), 20)
        ]
        if said.calls:
            parts: list[AssistantPart] = [ReasoningPart(said.reasoning)] if said.reasoning else []
            parts += [
                ToolCallPart(f"c{index}", call.tool, Content(call.arguments)) for index, call in enumerate(said.calls)
            ]
            events.append(self._called(tx, turn, said, 1, tuple(parts), FinishReason.TOOL_CALLS, at))
            for index, call in enumerate(said.calls):
                events += self._tool(tx, turn, said.agent, index, call, at)
        if said.answer is not None:
            text = said.answer if isinstance(said.answer, str) else said.answer.text
            round_ = 2 if said.calls else 1
            parts = [TextPart(text)] if said.calls else [*_reasoned(said), TextPart(text)]
            events.append(self._called(tx, turn, said, round_, tuple(parts), FinishReason.STOP, at))
        return events

    def _called(
        self,
        tx: LedgerTx,
        turn: Turn,
        said: Said,
        round_: int,
        parts: tuple[AssistantPart, ...],
        finish: FinishReason,
        at: int,
    ) -> ModelCalled:
        spec = _spec(turn, said.agent, model_position(round_), "model", EffectClass.MODEL)
        effect = tx.effects.dispatch(spec, at, "worker")
        tx.effects.settle(spec.effect_id, effect.attempt, EffectState.SUCCEEDED, at, b"{}")
        message = AssistantMessage(parts)
        return ModelCalled(
            turn.turn_id, said.agent, spec.effect_id, 1, round_, "scripted", "m-1", message, finish, USAGE
        )

    def _tool(self, tx: LedgerTx, turn: Turn, agent: str, index: int, call: Call, at: int) -> list[Event]:
        position = call_position(1, index)
        spec = _spec(turn, agent, position, f"tool:{call.tool}", EffectClass.AT_MOST_ONCE, call.arguments)
        effect = tx.effects.dispatch(spec, at, "worker")
        started = ToolStarted(turn.turn_id, agent, spec.effect_id, 1, 1, index, f"c{index}", call.tool)
        if call.lost:
            return [started]
        state = EffectState.FAILED if call.is_error else EffectState.SUCCEEDED
        output = _content(call.result)
        tx.effects.settle(spec.effect_id, effect.attempt, state, at, encode(output))
        finished = ToolFinished(
            turn_id=turn.turn_id,
            agent=agent,
            effect_id=spec.effect_id,
            attempt=1,
            round=1,
            index=index,
            call_id=f"c{index}",
            tool=call.tool,
            state=state,
            output=output,
            is_error=call.is_error,
            detail={},
        )
        return [started, finished]


def _content(value: Content | str) -> Content:
    return Content(value) if isinstance(value, str) else value


def _reasoned(said: Said) -> list[AssistantPart]:
    return [ReasoningPart(said.reasoning)] if said.reasoning else []


def _spec(
    turn: Turn, agent: str, position: str, operation: str, effect_class: EffectClass, arguments: str = ""
) -> EffectSpec:
    digest = hashlib.sha256(arguments.encode("utf-8", "surrogatepass")).hexdigest()
    return EffectSpec(
        effect_id=effect_id(turn.turn_id, turn.generation, agent, position, operation, digest),
        idempotency_key=idempotency_key(turn.turn_id, agent, position, operation, digest),
        session_id=turn.session_id,
        turn_id=turn.turn_id,
        generation=turn.generation,
        agent=agent,
        position=position,
        operation=operation,
        effect_class=effect_class,
        input_digest=digest,
        call_id=position if operation != "model" else None,
        arguments=Content(arguments) if operation != "model" else None,
    )


def _keyed(turn: Turn, event: Event, position: int) -> NewEvent:
    match event:
        case ModelCalled():
            key = f"{event.effect_id}/called"
        case ToolStarted():
            key = tool_event_key(
                turn.turn_id, event.agent, call_position(event.round, event.index), f"started/{event.attempt}"
            )
        case ToolFinished():
            key = tool_event_key(turn.turn_id, event.agent, call_position(event.round, event.index), "finished")
        case _:
            key = f"{turn.turn_id}/{position}/{event.TYPE}"
    return NewEvent(key, event, turn.turn_id)
