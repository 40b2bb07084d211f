"""The command line: ``sgljit``, or ``python -m sgljit_core``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sgljit_core._version import __version__
from sgljit_core.compilers import arch
from sgljit_core.errors import ConfigError, SgljitError
from sgljit_core.families import discovery
from sgljit_core.model.build import Target

from . import cache, clangd, wheels

__all__ = ["main"]

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Kernels that compile on first use, from many packages."
)
app.add_typer(cache.app, name="cache")


@app.command("list")
def list_families() -> None:
    """List the installed kernel families, with distribution and version. Imports none of them."""
    from rich.console import Console
    from rich.table import Table

    table = Table("family", "distribution", "version", "module", title=f"sgljit-core {__version__}")
    for family, claims in discovery.installed().items():
        for plugin in claims:
            table.add_row(family, plugin.distribution, plugin.version, plugin.module)
    Console().print(table)


@app.command("clangd")
def write_clangd(
    cuda_target: Annotated[
        str | None,
        typer.Option("--cuda-arch", "--cuda-target", help="The architecture, such as 9.0; by default the device's."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing .clangd.")] = False,
) -> None:
    """Write .clangd for the current directory, so that clangd understands the kernels."""
    target = arch.parse_cuda_target(cuda_target, "--cuda-target") if cuda_target else _device_target()
    text = clangd.configuration(target)
    file = Path(".clangd")
    if file.exists() and not overwrite:
        typer.echo(f"{file.absolute()} exists and is kept; --overwrite replaces it. It would read:", err=True)
        typer.echo(text, nl=False)
        raise typer.Exit(1)
    file.write_text(text)
    typer.echo(f"wrote {file.absolute()} for {target.name}")


@app.command("wheel")
def add_artifacts_to_wheel(
    wheel: Annotated[Path, typer.Argument(help="A plugin's wheel, as `pip wheel --no-deps` makes it.")],
    cuda_arch: Annotated[list[str], typer.Option(help="An architecture to build for, such as 9.0; may be repeated.")],
    into: Annotated[Path, typer.Option("--into", help="The directory to write to.")] = Path("dist"),
    platform: Annotated[str | None, typer.Option(help="The platform tag; by default this machine's.")] = None,
) -> None:
    """Write a wheel that carries what its families declare, so that its users need no compiler."""
    made = wheels.add_artifacts(wheel, cuda_arch, into, platform)
    typer.echo(f"wrote {made.path}, which carries {made.artifacts} artifacts for {' and '.join(made.targets)}")


def _device_target() -> Target:
    try:
        return arch.cuda_target()
    except ConfigError as error:
        raise ConfigError("no CUDA device to write the configuration for; name one: --cuda-target 9.0") from error


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. An error of sgljit is a message on stderr and exit status 1, not a traceback."""
    try:
        app(arguments)
    except (SgljitError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
