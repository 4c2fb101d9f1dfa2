"""Skills as tools of agents, and which ones a Session has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from milepost.domain.effects import EffectClass
from milepost.domain.errors import InvalidInput, MilepostError, ToolUnavailable
from milepost.domain.events import SessionSkillsSet, StreamKind
from milepost.domain.sessions import Session
from milepost.domain.skills import SKILL_TOOL, Skill
from milepost.domain.suggestions import closest
from milepost.domain.tools import Approval, CustomTool, Parallel, ToolDefinition, ToolPolicy
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.ports.system import Clock, IdSource
from milepost.ports.tools import Answer, Call, CustomTools
from milepost.services.sessions import require_active

SECONDS = 10.0
_POLICY = ToolPolicy(EffectClass.PURE, Parallel.SAFE, Approval.ALLOW)


@dataclass(frozen=True, slots=True)
class SkillTools:
    """`CustomTools` that adds the skills to others. What a call brought is recorded, whatever becomes of the file."""

    others: CustomTools
    skills: Mapping[str, Skill]

    def offered(self, names: Sequence[str], agent: str = "") -> list[tuple[ToolDefinition, CustomTool]]:
        """See `CustomTools`."""
        own = [name for name in names if name.startswith(SKILL_TOOL)]
        found = [self._offer(name) for name in own]
        return [*self.others.offered([name for name in names if name not in own], agent), *found]

    def _offer(self, name: str) -> tuple[ToolDefinition, CustomTool]:
        skill = self._skill(name)
        text = f"Load the skill '{skill.skill_id}': instructions to follow. {skill.description}"
        schema = {"type": "object", "properties": {}, "additionalProperties": False}
        return ToolDefinition(name, text, schema), CustomTool(name, _POLICY, SECONDS)

    def _skill(self, name: str) -> Skill:
        skill = self.skills.get(name.removeprefix(SKILL_TOOL))
        if skill is None:
            raise ToolUnavailable(
                f"There is no skill '{name.removeprefix(SKILL_TOOL)}' here.", fix="See: milepost skills list"
            )
        return skill

    async def run(self, call: Call, seconds: float) -> Answer:
        """See `CustomTools`."""
        if not call.tool.startswith(SKILL_TOOL):
            return await self.others.run(call, seconds)
        skill = self._skill(call.tool)
        return Answer(skill.text, detail={"skill": skill.skill_id, "source": skill.source})

    def problems(self) -> dict[str, MilepostError]:
        """See `CustomTools`."""
        return self.others.problems()


class SkillService:
    """Lists skills, and sets which ones a Session has."""

    def __init__(
        self, ledger: Ledger, clock: Clock, ids: IdSource, skills: Mapping[str, Skill], problems: Sequence[str] = ()
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._ids = ids
        self.skills = dict(skills)
        self.problems = tuple(problems)

    def check(self, skills: Sequence[str]) -> tuple[str, ...]:
        """The skills, each once and in order. Raises InvalidInput for one that there is not."""
        for skill in skills:
            if skill not in self.skills:
                close = closest(skill, self.skills)
                fix = f"Did you mean '{close}'?" if close else "See: milepost skills list"
                raise InvalidInput(f"There is no skill '{skill[:80]}'.", field="skills", fix=fix)
        return tuple(sorted(set(skills)))

    async def set(self, session_id: str, skills: Sequence[str] | None, *, actor: str) -> Session:
        """Give a Session these skills in place of its agents' own; None gives those back. Counts from the next turn on.

        Raises SessionNotFound, SessionClosed, InvalidInput.
        """
        chosen = None if skills is None else self.check(skills)
        now = self._clock.now()
        key = self._ids.new("skills")

        def body(tx: LedgerTx) -> Session:
            tx.turns.lock_session(session_id)
            session = tx.sessions.get(session_id)
            require_active(session)
            if session.skills == chosen:
                return session
            tx.sessions.set_skills(session_id, chosen)
            event = NewEvent(f"session.skills/{key}", SessionSkillsSet(chosen, actor))
            tx.events.append(session_id, StreamKind.SESSION, [event], now)
            tx.notify(session_id)
            return tx.sessions.get(session_id)

        return await self._ledger.write(body)
