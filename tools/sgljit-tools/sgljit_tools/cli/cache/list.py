"""``sgljit cache list`` and ``sgljit cache verify``: neither changes anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from sgljit_core.families import loading
from sgljit_tools.cache import admin

from .options import Directory, size_text


def list_entries(directory: Directory = None) -> None:
    """List the artifacts: those of a directory, or of the user's own cache and of the installed plugins."""
    _list(admin.entries(directory))
    for place, plugin in _carried(directory):
        typer.echo(f"{plugin} carries, in {place}:")
        _list(admin.entries(place, vouched=True))


def verify(directory: Directory = None) -> None:
    """Read every artifact that `sgljit cache list` lists. Exit status 1 if one does not match its manifest."""
    damaged, total = admin.verify(directory), len(admin.entries(directory))
    for place, _ in _carried(directory):
        damaged += admin.verify(place, vouched=True)
        total += len(admin.entries(place, vouched=True))
    for entry in damaged:
        typer.echo(f"{entry.directory}: {entry.problem}")
    typer.echo(f"{len(damaged)} damaged of {total}")
    if damaged:
        raise typer.Exit(1)


def _list(found: Sequence[admin.Entry]) -> None:
    for entry in found:
        manifest = entry.manifest
        what = f"{manifest.build}, {manifest.seconds:.1f} s" if manifest else f"damaged: {entry.problem}"
        typer.echo(f"{size_text(entry.size):>9}  {entry.directory.parent.name[:8]}  {what}")
    typer.echo(f"{len(found)} artifacts, {size_text(sum(entry.size for entry in found))}")


def _carried(directory: Path | None) -> list[tuple[Path, str]]:
    """The roots to look at besides the user's own cache, if no directory is named."""
    return [] if directory else sorted(loading.carried_artifacts().items())
