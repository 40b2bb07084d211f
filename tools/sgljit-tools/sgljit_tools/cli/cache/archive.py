"""``sgljit cache export`` and ``sgljit cache import``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sgljit_core import log
from sgljit_tools.cache import admin

from .options import Directory


def export_archive(
    file: Annotated[Path, typer.Argument(help="The file to write: a .tar, .tar.gz or .tar.xz.")],
    directory: Directory = None,
    family: Annotated[str | None, typer.Option(help="Only this family.")] = None,
    target: Annotated[str | None, typer.Option(help="Only this target, such as sm_90a.")] = None,
) -> None:
    """Write artifacts into one file."""
    family = family and family.replace("-", "_")
    count = admin.export_archive(file, directory, family=family, target=target)
    typer.echo(f"wrote {count} artifacts to {file}")
    if log.was_said("artifact_damaged"):
        typer.echo("error: some artifacts could not be written; see the warnings", err=True)
        raise typer.Exit(1)
    if count == 0:
        manifests = [entry.manifest for entry in admin.entries(directory) if entry.manifest]
        families = ", ".join(sorted({manifest.family for manifest in manifests})) or "none"
        targets = ", ".join(sorted({manifest.target for manifest in manifests})) or "none"
        typer.echo(f"error: nothing to write; the cache has the families {families} and targets {targets}", err=True)
        raise typer.Exit(1)


def import_archive(
    file: Annotated[Path, typer.Argument(help="An archive that `sgljit cache export` wrote.")],
    directory: Directory = None,
) -> None:
    """Put the artifacts of an archive into the cache, or into a directory of prebuilt ones."""
    typer.echo(f"{admin.import_archive(file, directory)} artifacts are in {directory or admin.root()}")
