"""Entry point of `milepost`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cli.commands import approvals, chat, config, data, doctor, ledger, run, servers, sessions, turns
from milepost.temporal.exit import clean_exit

commands = typer.Typer(
    name="milepost",
    help="A self-hosted, durable agent workbench.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for module in (run, chat, turns, sessions, ledger, approvals, servers, config, doctor, data):
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
        commands()
    except SystemExit as error:
        code = error.code
    if not isinstance(code, int):
        if code is not None:
            sys.stderr.write(f"{code}\n")
        code = 0 if code is None else 1
    clean_exit(code)
