"""`milepost dev`, `milepost api`, `milepost worker`: processes that stay."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from cli.failures import Exit
from cli.invocation import Invocation, command
from milepost.bootstrap.data_root import InstanceInfo
from milepost.domain.errors import ConfigInvalid
from milepost.temporal.exit import clean_exit

if TYPE_CHECKING:
    from milepost.bootstrap.temporal import TemporalConnection
    from milepost.config.loading import Config

QUEUES = ("turns", "models", "sandbox")
LAST_SECONDS = 5.0


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(app, "dev")(dev)
    command(app, "api")(api)
    command(app, "worker")(worker)


async def dev(call: Invocation) -> Exit:
    """Run everything in this terminal: Temporal, migrations, workers, API. Ctrl-C stops it in order."""
    from cli.stack import running_stack

    call.log()

    async def serve(stop: asyncio.Event) -> None:
        call.root.prepare()
        with call.root.lock("dev"):
            async with running_stack(call.config, call.root, role="dev", tcp=True, say=call.out.note) as stack:
                _announce(call, stack.served.info, stack.namespace)
                await stop.wait()
                call.out.note("Stopping ...")

    return await _until_signal(serve)


async def api(
    call: Invocation,
    tcp_only: Annotated[
        bool, typer.Option("--tcp-only", help="Leave the data root's socket alone: for a further API beside it.")
    ] = False,
) -> Exit:
    """Serve the API alone, against a Temporal cluster and PostgreSQL."""
    from cli.serving import serving
    from cli.stack import require_own_packages
    from milepost.bootstrap.checks import TemporalPart
    from milepost.bootstrap.core import open_core
    from milepost.bootstrap.temporal import expected_ui, lazy_check

    config, root = call.config, call.root
    _require_cluster(config, "api")
    call.log()
    await require_own_packages()

    async def serve(stop: asyncio.Event) -> None:
        section = config.settings.temporal
        part = TemporalPart(expected_ui(config), section.namespace, section.address, lazy_check(config))
        async with contextlib.AsyncExitStack() as stack:
            root.prepare()
            stack.enter_context(root.lock("api", shared=True))
            if not tcp_only:
                stack.enter_context(root.serving_lock("api"))
            core = await stack.enter_async_context(open_core(config, root))
            core.workbench.publishes = False  # the worker of this host does
            await core.record_start("api")
            served = await stack.enter_async_context(serving(core, part, role="api", tcp=True, uds=not tcp_only))
            _announce(call, served.info, part.namespace)
            await stop.wait()
            call.out.note("Stopping ...")

    return await _until_signal(serve)


async def worker(
    call: Invocation,
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", metavar="QUEUE", help="Kind of work to take: turns, models, sandbox. Repeatable."),
    ] = None,
) -> Exit:
    """Work on turns, against a Temporal cluster and PostgreSQL."""
    from cli.stack import execution_parts, require_own_packages, worker_settings
    from cli.working import working
    from milepost.bootstrap.core import open_core
    from milepost.temporal.starter import TemporalStarter
    from workers.process import WorkerProcess, host_name, split_queues

    config, root = call.config, call.root
    queues = _queues(queue or list(config.settings.worker.queues))
    _require_cluster(config, "worker")
    call.log()
    await require_own_packages()

    async def serve(stop: asyncio.Event) -> None:
        async with contextlib.AsyncExitStack() as stack:
            root.prepare()
            stack.enter_context(root.lock("worker", shared=True))
            core = await stack.enter_async_context(open_core(config, root))
            await core.record_start("worker", *queues)
            drain = config.settings.worker.drain_seconds
            settings = worker_settings(config, core.ledger.instance_id, drain_seconds=drain)

            def make(temporal: TemporalConnection) -> WorkerProcess:
                starter = TemporalStarter(temporal.client, core.ledger.instance_id, eager=not settings.deployment)
                served = split_queues(host_name(), queues)
                return WorkerProcess(execution_parts(core), temporal.client, starter, served, settings)

            await stack.enter_async_context(working(config, root, make, call.out.note, patient=True))
            call.out.note(f"Working on: {', '.join(queues)}. Ctrl-C stops.", style="green")
            await stop.wait()
            call.out.note("Stopping ...")

    return await _until_signal(serve)


def _queues(names: list[str]) -> list[str]:
    for name in names:
        if name not in QUEUES:
            raise ConfigInvalid(f"There is no queue '{name}'.", field="queue", fix=f"Known: {', '.join(QUEUES)}.")
    return list(dict.fromkeys(names))


def _require_cluster(config: Config, role: str) -> None:
    if not config.database_url().startswith("postgresql"):
        raise ConfigInvalid(
            f"`milepost {role}` is one of several processes, and SQLite serves only one.",
            field="database.url",
            fix="Set database.url to postgresql://USER@HOST/NAME, or run everything in one process: milepost dev",
        )
    if not config.settings.temporal.address:
        raise ConfigInvalid(
            f"`milepost {role}` needs a Temporal cluster that all processes share.",
            field="temporal.address",
            fix="Set temporal.address to HOST:PORT, or run everything in one process: milepost dev",
        )


def _announce(call: Invocation, info: InstanceInfo, namespace: str) -> None:
    if call.json:
        ui = info.temporal_ui or None
        call.out.record({"api": info.api_url, "temporal_ui": ui, "token_file": str(call.root.token)})
        return
    call.out.note("Milepost is ready.", style="bold green")
    call.out.line(f"  API:      {info.api_url}/api/v1/openapi.json   (token in {call.root.token})")
    if info.temporal_ui:
        call.out.line(f"  Temporal: {info.temporal_ui}/namespaces/{namespace}")
    call.out.note("  Ctrl-C stops it in order.")


async def _until_signal(serve: Callable[[asyncio.Event], Awaitable[None]]) -> Exit:
    """Run until SIGINT or SIGTERM, then end in order; a second signal gives up waiting for work that runs."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    main = asyncio.current_task()

    def on_signal() -> None:
        if stop.is_set() and main is not None:
            main.cancel()
            # What does not let itself be cancelled may not hold up a person who asked twice.
            loop.call_later(LAST_SECONDS, clean_exit, int(Exit.STOPPED))
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    with contextlib.suppress(asyncio.CancelledError):
        await serve(stop)
    return Exit.OK
