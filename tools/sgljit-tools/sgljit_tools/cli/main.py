"""Which command runs which function? The command line: ``sgljit``, or ``python -m sgljit_core``."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Annotated, Any

import typer

from sgljit_core import __version__
from sgljit_core.config import settings
from sgljit_core.errors import SgljitError
from sgljit_core.plugins import discovery
from sgljit_tools._version import __version__ as tools_version

# By command: the module of this package, and its function; a group of commands is one's ``app``.
_COMMANDS = {
    "list": ("list", "list_families"),
    "doctor": ("doctor", "examine"),
    "report": ("report", "write_report"),
    "new": ("new", "new_distribution"),
    "prepare": ("prepare", "prepare"),
    "clangd": ("clangd", "write_clangd"),
    "test": ("test", "run_tests"),
    "wheel": ("wheel", "add_artifacts_to_wheel"),
    "cache": ("cache", "app"),
}


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"sgljit-core {__version__}, sgljit-tools {tools_version}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the versions.")
    ] = False,
) -> None:
    """Kernels that compile on first use, from many packages."""


@functools.cache
def application(named: str = "") -> typer.Typer:
    """The command line. With the name of a command it has no other, whose imports would take longer than that runs.

    Other distributions add commands to it and to the group ``cache``: entry points such as ``lock`` or
    ``cache.bundle``, each a function. One that cannot be imported is reported and left out.
    """
    app = typer.Typer(no_args_is_help=True, add_completion=False)
    app.callback()(options)
    groups = {"": app}
    for command in [named] if named in _COMMANDS else _COMMANDS:
        module, name = _COMMANDS[command]
        found = getattr(importlib.import_module(f"{__package__}.{module}"), name)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=command)
            groups[command] = found
        else:
            app.command(command)(found)
    if named in _COMMANDS and named not in groups:
        return app
    for plugin in discovery.entry_points("sgljit.commands", settings().plugins):
        group, _, name = plugin.name.rpartition(".")
        try:
            groups[group].command(name)(discovery.import_plugin(plugin))
        except Exception as error:  # noqa: BLE001 - it is a plugin's, and may be anything
            about = f"the command {plugin.name} of {plugin}"
            discovery.report(about, f"{about} cannot be used: {error!r}")
    return app


def added(command: str, option: str) -> Any:
    """The function of a command that sgljit-remote adds. Raises SgljitError: an option needs it, and it is missing."""
    for plugin in discovery.entry_points("sgljit.commands", settings().plugins):
        if plugin.name == command:
            return discovery.import_plugin(plugin)
    raise SgljitError(f"{option} needs the command {command} of sgljit-remote: pip install sgljit-remote")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. An error of sgljit gives a message on stderr and exit status 1, not a traceback."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if given in (["doctor"], ["doctor", "--json"]):  # to parse these, typer would take as long as the doctor
            importlib.import_module(f"{__package__}.doctor").examine(as_json="--json" in given)
            return
        application(given[0] if given else "")(arguments)
    except (typer.Exit, KeyboardInterrupt) as end:
        sys.exit(getattr(end, "exit_code", 130))  # as typer ends after an interrupt
    except (SgljitError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
