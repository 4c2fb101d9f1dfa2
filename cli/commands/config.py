"""`milepost init` and `milepost config ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.failures import Exit
from cli.invocation import Invocation, command
from milepost.domain.errors import ConfigInvalid, InvalidInput, MilepostError

TEMPLATE = """\
# Milepost configuration. Every key has a default; `milepost config schema` describes them all.
# Secrets never stand here, only references to them: env:NAME or file:PATH.

# A model behind any OpenAI-compatible endpoint:
#
# providers:
#   local:
#     type: openai_compatible
#     base_url: http://127.0.0.1:8081/v1
#     model: NAME_OF_THE_MODEL
#     api_key: env:LOCAL_MODEL_KEY     # leave out if the endpoint needs none
#   cloud:                             # services have types of their own, see docs/models.md
#     type: openai
#     model: gpt-5
#     api_key: env:OPENAI_API_KEY

# Agents by id. Without any there is one, `default`, which plays a built-in script without any model.
#
# agents:
#   default:
#     provider: local
#     tools: [read_file, write_file, edit_file, list_dir, grep, glob, bash]

# What models cost, per million tokens, where the packaged table does not know it:
#
# prices:
#   models:
#     - {provider: local, input: 0, output: 0}

sandbox:
  backend: podman          # podman | e2b | none (Sessions then have no tools that need one)
  network: none            # none | bridge
  limits: {memory: 2GiB, cpus: 2, pids: 512}
  environment: []          # names of this machine's variables that commands may see

api: {host: 127.0.0.1, port: 8080}
"""


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Check and show the configuration.", no_args_is_help=True)
    app.add_typer(group, name="config")
    command(app, "init")(init)
    command(group, "validate")(validate)
    command(group, "show")(show)
    command(group, "schema")(schema)


async def init(
    call: Invocation,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write milepost.yaml.")] = Path(),
) -> None:
    """Write a commented milepost.yaml to start from. Refused, and nothing changed, if there is one."""
    from milepost.config.loading import FILE_NAME

    target = folder.expanduser() / FILE_NAME
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(TEMPLATE)
    except FileExistsError:
        raise InvalidInput(
            f"{target} exists already.", field="folder", fix="Edit it, or name another folder."
        ) from None
    except OSError as error:
        raise InvalidInput(f"{target} cannot be written: {error.strerror}.", field="folder") from error
    if call.json:
        call.out.document({"path": str(target.absolute())})
    else:
        call.out.line(f"Wrote {target}. Check it with: milepost config validate")
    await _tell_running(call)


async def _tell_running(call: Invocation) -> None:
    from cli.connection import running_info

    try:
        info = await running_info(call.root)
    except MilepostError:
        # Another file or variable at fault hides where the data root is; the next command says so.
        return
    if info is not None and info.role != "run":
        call.out.note(
            f"milepost {info.role} is running (pid {info.pid}) with {info.config_path or 'the built-in defaults'}: "
            f"restart milepost {info.role} for another file to count.",
            style="yellow",
        )


def validate(call: Invocation) -> Exit:
    """Check the configuration and list every fault with its place."""
    from milepost.config.loading import find_file
    from milepost.config.problems import ConfigProblems

    path = find_file(call.config_file)
    try:
        config = call.config
    except ConfigInvalid as error:
        problems = error.problems if isinstance(error, ConfigProblems) else ()
        if not call.json:
            for problem in problems:
                call.out.note(f"{problem}{' ' + problem.fix if problem.fix else ''}", style="red")
            if not problems:
                call.out.error(error)
            return Exit.USAGE
        found = [
            {name: getattr(problem, name) for name in ("place", "line", "column", "key", "message", "fix")}
            for problem in problems
        ] or [{"place": str(path), "message": error.message, "fix": error.fix}]
        call.out.document({"ok": False, "path": str(path) if path else None, "problems": found})
        return Exit.USAGE
    if call.json:
        call.out.document({"ok": True, "path": str(path) if path else None, "problems": []})
    else:
        where = str(path) if path else "No milepost.yaml found; the built-in defaults"
        call.out.line(f"{where}: valid. Agents: {', '.join(config.agents)}. Default: {config.default_agent}.")
    return Exit.OK


def show(call: Invocation) -> None:
    """Print the configuration in force, defaults filled in; secrets appear as references."""
    from milepost.config.loading import shown

    values = shown(call.config)
    if call.json:
        call.out.document(values)
        return
    from io import StringIO

    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.default_flow_style = False
    text = StringIO()
    yaml.dump(values, text)
    source = str(call.config.path) if call.config.path else "built-in defaults"
    call.out.write(f"# {source}\n{text.getvalue()}")


def schema(call: Invocation) -> None:
    """Print the JSON Schema of milepost.yaml, for editors."""
    from milepost.config.loading import json_schema

    call.out.document(json_schema())
