"""Health and what runs here."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from api.dependencies import AppServices
from api.documentation import problems
from api.responses import reply
from api.schemas.instance import Alive, Checks, Instance

router = APIRouter(tags=["instance"])


@router.get(
    "/health/live", response_model=Alive, responses=problems(token=False), summary="Tell that the process answers"
)
async def health_live() -> Response:
    """Open without credentials; looks at nothing else."""
    return reply(Alive(status="ok"))


@router.get(
    "/health/ready",
    response_model=Checks,
    responses={**problems(), 503: {"model": Checks, "description": "A part without which no turn can run is missing."}},
    summary="Tell whether turns can run",
)
async def health_ready(services: AppServices) -> Response:
    """Looks at the parts without which no turn can run."""
    checks = Checks.of(await services.health.ready())
    return reply(checks, 200 if checks.ok else 503)


@router.get("/api/v1/doctor", response_model=Checks, responses=problems(), summary="Check every part")
async def doctor(services: AppServices) -> Response:
    """Looks at every real part and names the exact fix of what is wrong. 200 also when something is."""
    return reply(Checks.of(await services.health.doctor()))


@router.get("/api/v1/instance", response_model=Instance, responses=problems(), summary="Tell what runs here")
async def instance(services: AppServices) -> Response:
    """Release, instance id and the Temporal UI."""
    shape = Instance(
        instance_id=services.instance_id,
        release=services.release,
        temporal_ui=services.temporal_ui,
        temporal_namespace=services.temporal_namespace,
    )
    return reply(shape)
