"""`milepost models ...`."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.failures import Exit
from cli.invocation import Invocation, command
from cli.output import counted
from cli.routes import API, Json

MAX_SHOWN = 40

Provider = Annotated[str | None, typer.Argument(metavar="PROVIDER", help="Name of one provider; all without it.")]
Call = Annotated[
    bool,
    typer.Option("--call", help="Call each route once: about 200 tokens sent, at most 1,024 back. May cost money."),
]
All = Annotated[bool, typer.Option("--all", help="Show every model of a long list.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Which models can be used.", no_args_is_help=True)
    app.add_typer(group, name="models")
    command(group, "list")(list_models)
    command(group, "check")(check)


async def list_models(call: Invocation, provider: Provider = None, every: All = False) -> Exit:
    """Ask each provider which models it has. Calls no model. Exits with 1 if one cannot be asked."""
    from cli.connection import Need, reach

    async with reach(call, Need.WRITE) as reached:
        found = await reached.client.get(f"{API}/models", provider=provider)
    if call.json:
        call.out.document(found)
    else:
        for item in found["providers"]:
            _print_provider(call, item, None if every else MAX_SHOWN)
        _hint(call, found["providers"])
    return Exit.OK if all(item["ok"] for item in found["providers"]) else Exit.FAILED


async def check(call: Invocation, provider: Provider = None, real: Call = False) -> Exit:
    """Tell what works with the configured keys: every route that an agent uses, or those of one provider.

    Exits with 1 if one does not work.
    """
    from cli.connection import Need, reach

    async with reach(call, Need.WRITE) as reached:
        found = await reached.client.post(f"{API}/models/check", {"provider": provider, "call": real})
    if call.json:
        call.out.document(found)
    else:
        for route in found["routes"]:
            _print_route(call, route)
        if not real and found["ok"]:
            call.out.line("[dim]Nothing was called. To try a real call of each: milepost models check --call[/]")
    return Exit.OK if found["ok"] else Exit.FAILED


def _print_provider(call: Invocation, item: Json, limit: int | None) -> None:
    from rich.markup import escape

    call.out.line(f"{_mark(item['ok'])} [bold]{escape(item['provider'])}[/] ({item['type']}): {escape(item['detail'])}")
    if item["fix"]:
        call.out.line(f"     [yellow]→ {escape(item['fix'])}[/]")
    shown = item["models"] if limit is None else item["models"][:limit]
    for model in shown:
        facts = [f"{model['context_tokens']:,} tokens"] if model["context_tokens"] else []
        facts += model["abilities"]
        default = " [green](default)[/]" if model["model"] == item["default_model"] else ""
        said = f" [dim]{escape(', '.join(facts))}[/]" if facts else ""
        call.out.line(f"     {escape(model['model'])}{default}{said}")
    if len(shown) < len(item["models"]):
        more = counted(len(item["models"]) - len(shown), "more model")
        call.out.line(f"     [dim]and {more}: milepost models list {escape(item['provider'])} --all[/]")


def _print_route(call: Invocation, route: Json) -> None:
    from rich.markup import escape

    name = f"{route['provider']}/{route['model']}" if route["model"] else route["provider"]
    users = f" [dim]({escape(', '.join(route['used_by']))})[/]" if route["used_by"] else ""
    call.out.line(f"{_mark(route['ok'])} [bold]{escape(name)}[/]{users}: {escape(route['detail'])}")
    if route["fix"]:
        call.out.line(f"     [yellow]→ {escape(route['fix'])}[/]")
    trial = route["trial"]
    if trial:
        usage = trial["usage"]
        sent = usage["input_tokens"] + usage["cached_input_tokens"]
        back = usage["output_tokens"] + usage["reasoning_tokens"]
        call.out.line(f"     [dim]The call used {sent:,} tokens in and {back:,} out.[/]")
        for note in trial["notes"]:
            call.out.line(f"     [dim]{escape(note)}[/]")


def _mark(ok: bool) -> str:
    return "[green]ok  [/]" if ok else "[red]FAIL[/]"


def _hint(call: Invocation, providers: list[Json]) -> None:
    if all(item["type"] == "scripted" for item in providers):
        call.out.line("No provider of real models is configured. Write a configuration with examples: milepost init")
