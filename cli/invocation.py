"""What all commands share: `--json`, `--config`, the configuration, and the way failures become exit codes."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from cli.failures import Exit, exit_of
from cli.output import Output
from milepost.domain.errors import MilepostError

if TYPE_CHECKING:
    from milepost.bootstrap.data_root import DataRoot
    from milepost.config.loading import Config

_JSON = Annotated[bool, typer.Option("--json", help="Print one JSON document (JSON lines for streams).")]
_FILE = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Configuration file instead of the one found.")
]


class Invocation:
    """One call of a command."""

    def __init__(self, *, as_json: bool, config_file: Path | None) -> None:
        self.json = as_json
        self.out = Output(as_json=as_json)
        self.config_file = config_file

    @cached_property
    def config(self) -> Config:
        """The configuration in force. Raises ConfigInvalid."""
        from milepost.config.loading import load_config

        return load_config(self.config_file)

    @cached_property
    def root(self) -> DataRoot:
        """The data root; nothing is created."""
        from milepost.bootstrap.data_root import DataRoot

        return DataRoot(self.config.data_root)

    def log(self, level: str | None = None) -> None:
        """Send this process's logs to standard error, as the configuration says or from `level` up."""
        from milepost.observability.logging import configure

        section = self.config.settings.logging
        hide = self.config.secrets.redactor.certain
        configure(level=level or section.level, json=section.format == "json", hide=hide)


Handler = Callable[..., Exit | Coroutine[Any, Any, Exit | None] | None]


def command(app: typer.Typer, name: str) -> Callable[[Handler], Handler]:
    """Register a command whose first parameter is the `Invocation`; the rest are its own arguments and options."""

    def register(handler: Handler) -> Handler:
        app.command(name)(_wrapped(handler))
        return handler

    return register


def _wrapped(handler: Handler) -> Callable[..., None]:
    @functools.wraps(handler)
    def run(*, json_output: bool, config_file: Path | None, **arguments: Any) -> None:
        call = Invocation(as_json=json_output, config_file=config_file)
        raise typer.Exit(int(_outcome(call, handler, arguments)))

    hints = get_type_hints(handler, include_extras=True)
    own = list(inspect.signature(handler).parameters.values())[1:]
    parameters = [parameter.replace(annotation=hints[parameter.name]) for parameter in own]
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [parameter.replace(kind=keyword) for parameter in parameters]
    parameters.append(inspect.Parameter("json_output", keyword, default=False, annotation=_JSON))
    parameters.append(inspect.Parameter("config_file", keyword, default=None, annotation=_FILE))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _outcome(call: Invocation, handler: Handler, arguments: dict[str, Any]) -> Exit:
    try:
        outcome = handler(call, **arguments)
        result = asyncio.run(outcome) if isinstance(outcome, Coroutine) else outcome
    except MilepostError as error:
        call.out.error(error)
        return exit_of(error)
    except KeyboardInterrupt:
        return Exit.STOPPED
    except BrokenPipeError:
        # The reader of a pipe has what it wanted.
        return Exit.OK
    return Exit.OK if result is None else Exit(result)
