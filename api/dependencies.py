"""What routes get: the services of the application they belong to, and ids of the right form."""

from __future__ import annotations

import re
from typing import Annotated, cast

from fastapi import Depends, Path
from starlette.requests import HTTPConnection

from api.schemas.sessions import ID_PATTERN
from milepost.domain.errors import (
    ApprovalNotFound,
    AttachmentNotFound,
    EffectNotFound,
    PolicyRuleNotFound,
    SessionNotFound,
    TurnNotFound,
)
from milepost.security.access import Access, Identity
from milepost.security.guard import IDENTITY_KEY
from milepost.services.catalog import Services

_ID = re.compile(ID_PATTERN)
_EFFECT_ID = re.compile(r"[0-9a-f]{64}")


async def _services(connection: HTTPConnection) -> Services:
    return cast(Services, connection.app.state.services)


async def _access(connection: HTTPConnection) -> Access:
    return cast(Access, connection.app.state.access)


async def _session_id(session_id: Annotated[str, Path(description="Id of a Session.")]) -> str:
    # No id has another form, so the database need not be asked with whatever a client puts there.
    if not _ID.fullmatch(session_id):
        raise SessionNotFound("There is no Session with this id.", field="session_id")
    return session_id


async def _turn_id(turn_id: Annotated[str, Path(description="Id of a turn.")]) -> str:
    if not _ID.fullmatch(turn_id):
        raise TurnNotFound("There is no turn with this id.", field="turn_id")
    return turn_id


async def _effect_id(effect_id: Annotated[str, Path(description="Id of an effect: 64 hexadecimal digits.")]) -> str:
    if not _EFFECT_ID.fullmatch(effect_id):
        raise EffectNotFound("There is no effect with this id.", field="effect_id")
    return effect_id


async def _approval_id(approval_id: Annotated[str, Path(description="Id of an approval.")]) -> str:
    if not _ID.fullmatch(approval_id):
        raise ApprovalNotFound("There is no approval with this id.", field="approval_id")
    return approval_id


async def _attachment_id(attachment_id: Annotated[str, Path(description="Id of an attachment.")]) -> str:
    if not _ID.fullmatch(attachment_id):
        raise AttachmentNotFound("There is no attachment with this id.", field="attachment_id")
    return attachment_id


async def _rule_id(rule_id: Annotated[str, Path(description="Id of a policy rule.")]) -> str:
    if not _ID.fullmatch(rule_id):
        raise PolicyRuleNotFound("There is no policy rule with this id.", field="rule_id")
    return rule_id


async def _actor(connection: HTTPConnection) -> str:
    return "workbench" if connection.scope.get(IDENTITY_KEY) is Identity.COOKIE else "api"


AppServices = Annotated[Services, Depends(_services)]
AppAccess = Annotated[Access, Depends(_access)]
SessionId = Annotated[str, Depends(_session_id)]
TurnId = Annotated[str, Depends(_turn_id)]
EffectId = Annotated[str, Depends(_effect_id)]
ApprovalId = Annotated[str, Depends(_approval_id)]
AttachmentId = Annotated[str, Depends(_attachment_id)]
RuleId = Annotated[str, Depends(_rule_id)]
Actor = Annotated[str, Depends(_actor)]
