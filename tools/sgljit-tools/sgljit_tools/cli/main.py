"""Which command runs which function? The command line: ``sgljit``, or ``python -m sgljit_core``."""

from __future__ import annotations

import sys

import typer

from sgljit_core import __version__
from sgljit_core.errors import SgljitError
from sgljit_core.plugins import discovery, hooks

from . import cache
from .clangd import write_clangd
from .new import new_distribution
from .prepare import prepare
from .test import run_tests
from .wheel import add_artifacts_to_wheel

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Kernels that compile on first use, from many packages."
)


@app.command("list")
def list_families() -> None:
    """List the installed kernel families, with distribution and version, and the plugins' problems.

    Imports no family.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table("family", "distribution", "version", "module", title=f"sgljit-core {__version__}")
    for family, claims in discovery.installed().items():
        for plugin in claims:
            table.add_row(family, plugin.distribution, plugin.version, plugin.module)
    problems = hooks.problems()
    console = Console()
    console.print(table)
    for problem in problems:
        console.print(f"problem: {problem}", markup=False, highlight=False, soft_wrap=True)


app.command("new")(new_distribution)
app.command("prepare")(prepare)
app.command("clangd")(write_clangd)
app.command("test")(run_tests)
app.command("wheel")(add_artifacts_to_wheel)
app.add_typer(cache.app, name="cache")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. An error of sgljit gives a message on stderr and exit status 1, not a traceback."""
    try:
        app(arguments)
    except (SgljitError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
