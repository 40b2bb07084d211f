"""Which command runs which function? The command line: ``sgljit``, or ``python -m sgljit_core``."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from typing import Annotated

import typer

from sgljit_core import __version__
from sgljit_core.config import settings
from sgljit_core.errors import SgljitError
from sgljit_core.plugins import discovery
from sgljit_tools._version import __version__ as tools_version

from . import cache
from .clangd import write_clangd
from .doctor import examine
from .list import list_families
from .new import new_distribution
from .prepare import prepare
from .test import run_tests
from .wheel import add_artifacts_to_wheel

app = typer.Typer(no_args_is_help=True, add_completion=False)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"sgljit-core {__version__}, sgljit-tools {tools_version}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the versions.")
    ] = False,
) -> None:
    """Kernels that compile on first use, from many packages."""


app.command("list")(list_families)
app.command("doctor")(examine)
app.command("new")(new_distribution)
app.command("prepare")(prepare)
app.command("clangd")(write_clangd)
app.command("test")(run_tests)
app.command("wheel")(add_artifacts_to_wheel)
app.add_typer(cache.app, name="cache")


def _add_commands() -> None:
    """Add the commands of other distributions: their entry points of the group ``sgljit.commands``, functions."""
    for plugin in discovery.entry_points("sgljit.commands", settings().plugins):
        try:
            app.command(plugin.name)(EntryPoint(plugin.name, plugin.module, "").load())
        except Exception as error:  # noqa: BLE001, PERF203 - the others must go on
            typer.echo(f"warning: {plugin}: the command {plugin.name} cannot be loaded: {error!r}", err=True)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. An error of sgljit gives a message on stderr and exit status 1, not a traceback."""
    first = next(iter(sys.argv[1:] if arguments is None else arguments), "")
    try:
        if first not in {"cache", *(command.name for command in app.registered_commands)}:
            _add_commands()  # which takes time
        app(arguments)
    except (SgljitError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
