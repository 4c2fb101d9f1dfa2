"""Entry point of `milepost`."""

from __future__ import annotations

import sys
from typing import Annotated, cast

import typer

from cli.commands import (
    agents,
    approvals,
    attachments,
    backups,
    chat,
    checkpoints,
    config,
    data,
    doctor,
    environments,
    exports,
    git,
    ledger,
    memory,
    models,
    run,
    search,
    servers,
    sessions,
    skills,
    terminals,
    turns,
    verify,
)
from cli.failures import Exit
from cli.output import Output
from milepost.domain.errors import InvalidInput
from milepost.temporal.exit import clean_exit

# The base of all usage errors; Typer has it from Click, or in releases of late from a copy of its own.
_USAGE_ERROR = cast("type[typer.BadParameter]", typer.BadParameter.__base__)

commands = typer.Typer(
    name="milepost",
    help="A self-hosted, durable agent workbench.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for module in (
    run,
    chat,
    turns,
    sessions,
    environments,
    terminals,
    git,
    ledger,
    search,
    exports,
    checkpoints,
    agents,
    skills,
    attachments,
    memory,
    approvals,
    servers,
    config,
    memory,
    models,
    doctor,
    data,
    verify,
    backups,
):
    module.register(commands)


def _version(value: bool) -> None:
    if value:
        from milepost.bootstrap.system import release

        typer.echo(f"milepost {release()}")
        raise typer.Exit


@commands.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A self-hosted, durable agent workbench."""


def app() -> None:
    """Run the command line and leave the process at once, without the interpreter's finalization."""
    code: object = 0
    try:
        code = commands(standalone_mode=False)
    except _USAGE_ERROR as error:
        _refuse(error)
        code = int(Exit.USAGE)
    except typer.Abort:
        code = int(Exit.FAILED)
    except SystemExit as error:
        code = error.code
    if not isinstance(code, int):
        if code is not None:
            sys.stderr.write(f"{code}\n")
        code = 0 if code is None else 1
    clean_exit(code)


def _refuse(error: typer.BadParameter) -> None:
    """Tell what is wrong with the arguments, as JSON if they ask for it."""
    arguments = sys.argv[1:]
    if "--" in arguments:
        arguments = arguments[: arguments.index("--")]
    if "--json" not in arguments:
        error.show()
        return
    message = error.format_message().rstrip(".") + "."
    parameter = getattr(error, "param", None)
    fix = f"See: {error.ctx.command_path} --help" if error.ctx else None
    Output(as_json=True).error(InvalidInput(message, field=parameter.name if parameter else None, fix=fix))
