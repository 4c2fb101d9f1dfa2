"""Health, the instance, logins."""

from __future__ import annotations

from typing import Annotated

from api.schemas.base import Body, Shape, at_most
from milepost.services.health import Check


class CheckShape(Shape):
    """One part of the instance. `fix` is the exact thing to do."""

    name: str
    ok: bool
    detail: str
    fix: str | None


class Checks(Shape):
    """What was looked at; `ok` if all parts are."""

    ok: bool
    checks: list[CheckShape]

    @classmethod
    def of(cls, checks: list[Check]) -> Checks:
        shapes = [CheckShape(name=item.name, ok=item.ok, detail=item.detail, fix=item.fix) for item in checks]
        return cls(ok=all(item.ok for item in checks), checks=shapes)


class Alive(Shape):
    """The process answers."""

    status: str


class Instance(Shape):
    """What runs here."""

    instance_id: str
    release: str
    temporal_ui: str
    temporal_namespace: str


class Login(Body):
    """The instance's token."""

    token: Annotated[str, *at_most(512)]
