"""The HTTP application: routes, the gate in front of them, errors, documentation."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fastapi import FastAPI

from api import documentation, problems
from api.documentation import OPENAPI_PATH
from api.faults import Unexpected
from api.limits import DEFAULT_MAX_BODY_BYTES, BodyLimit
from api.live import DEFAULT_MAX_READERS, LiveReaders
from api.routes import (
    agent_settings,
    agents,
    approvals,
    attachments,
    checkpoints,
    environments,
    exports,
    git,
    history,
    imports,
    instance,
    live,
    logins,
    long_term,
    memory,
    models,
    rewinds,
    root,
    search,
    sessions,
    skills,
    terminals,
    turns,
)
from milepost.security.access import Access
from milepost.security.guard import Guard
from milepost.security.hosts import HostPolicy
from milepost.services.catalog import Services

_UPLOAD = re.compile(r"/api/v1/sessions/[^/]+/attachments")
_OPEN = frozenset(
    {
        ("GET", "/"),
        ("GET", "/health/live"),
        ("GET", OPENAPI_PATH),
        ("POST", "/api/v1/login"),
        ("POST", "/api/v1/logout"),
    }
)


def create_app(
    services: Services,
    access: Access,
    *,
    allowed_hosts: Sequence[str] = (),
    allowed_origins: Sequence[str] = (),
    max_live_readers: int = DEFAULT_MAX_READERS,
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
) -> FastAPI:
    """The application over these services.

    Args:
        allowed_hosts: `name` or `name:port` beside the loopback names; give the name or address the server is bound to.
        allowed_origins: web origins (`https://name`) beside the instance's own.
        max_live_readers: how many WebSockets and event streams may follow at once.
        max_body_bytes: limit of a request body; routes without credentials take 8 KiB.

    Raises:
        ConfigInvalid: a host or origin of another form.
    """
    policy = HostPolicy.build(allowed_hosts, allowed_origins)
    cookie_name = logins.cookie_name(services.instance_id)
    app = FastAPI(
        title="Milepost",
        version=services.release,
        summary="A self-hosted, durable agent workbench.",
        openapi_url=OPENAPI_PATH,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=documentation.operation_id,
    )
    app.state.services = services
    app.state.access = access
    app.state.cookie_name = cookie_name
    app.state.live_readers = LiveReaders(services.live, max_live_readers)
    reading = (sessions, environments, turns, history, rewinds, checkpoints, memory, search)
    work = (*reading, agents, agent_settings, skills, exports, imports, attachments, approvals)
    for area in (*work, long_term, models, live, terminals, git, instance, logins, root):
        app.include_router(area.router)
    problems.install(app)
    documentation.install(app, is_open=_is_open, cookie_name=cookie_name)
    # The last one added is the first to see a request.
    app.add_middleware(BodyLimit, max_bytes=max_body_bytes, is_open=_is_open, has_own=_has_own_limits)
    app.add_middleware(Unexpected)
    app.add_middleware(
        Guard,
        access=access,
        policy=policy,
        cookie_name=cookie_name,
        is_open=_is_open,
        render=problems.render_refusal,
    )
    return app


def _has_own_limits(method: str, path: str) -> bool:
    return method == "POST" and (path == "/api/v1/imports" or _UPLOAD.fullmatch(path) is not None)


def _is_open(method: str, path: str) -> bool:
    return (method, path) in _OPEN
