"""Models and routes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from api.schemas.base import Body, Query, Shape
from api.schemas.turns import Name
from api.schemas.usage import UsageShape
from milepost.ports.models import ModelInfo
from milepost.services.models import ProviderModels, RouteCheck, Trial


class ModelsQuery(Query):
    """Whose models."""

    provider: Name | None = None


class RoutesCheck(Body):
    """What to check: one provider, else every route that an agent uses."""

    provider: Name | None = None
    call: Annotated[
        bool, Field(description="Make a real call of each route: about 200 tokens sent, at most 1,024 back.")
    ] = False


class ModelShape(Shape):
    """A model that a provider lists, with what the provider says of it; nulls and empty lists say nothing."""

    model: str
    context_tokens: int | None
    abilities: list[str]

    @classmethod
    def of(cls, info: ModelInfo) -> ModelShape:
        return cls(model=info.model_id, context_tokens=info.context_tokens, abilities=list(info.abilities))


class ProviderShape(Shape):
    """One provider and its models. Unless `ok`, `detail` and `fix` say why it could not be asked."""

    provider: str
    type: str
    default_model: str | None
    ok: bool
    detail: str
    fix: str | None
    models: list[ModelShape]

    @classmethod
    def of(cls, found: ProviderModels) -> ProviderShape:
        return cls(
            provider=found.provider,
            type=found.type,
            default_model=found.default_model,
            ok=found.ok,
            detail=found.detail,
            fix=found.fix,
            models=[ModelShape.of(info) for info in found.models],
        )


class ProviderList(Shape):
    """Every provider that is configured."""

    providers: list[ProviderShape]


class TrialShape(Shape):
    """A real call. `seconds` is how long the answer took."""

    seconds: float
    called_tool: bool
    usage: UsageShape
    notes: list[str]

    @classmethod
    def of(cls, trial: Trial) -> TrialShape:
        usage = UsageShape.of(trial.usage)
        return cls(seconds=trial.seconds, called_tool=trial.called_tool, usage=usage, notes=list(trial.notes))


class RouteShape(Shape):
    """Whether a route works. `used_by` says who uses it; `fix` is the exact thing to do."""

    provider: str
    model: str
    used_by: list[str]
    ok: bool
    detail: str
    fix: str | None
    trial: TrialShape | None

    @classmethod
    def of(cls, found: RouteCheck) -> RouteShape:
        return cls(
            provider=found.provider,
            model=found.model,
            used_by=list(found.used_by),
            ok=found.ok,
            detail=found.detail,
            fix=found.fix,
            trial=None if found.trial is None else TrialShape.of(found.trial),
        )


class RouteList(Shape):
    """What was checked; `ok` if all of it works."""

    ok: bool
    routes: list[RouteShape]
