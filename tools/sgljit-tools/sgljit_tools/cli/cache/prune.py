"""``sgljit cache prune``."""

from __future__ import annotations

from typing import Annotated

import typer

from sgljit_core import why
from sgljit_core.plugins import discovery
from sgljit_tools.cache import admin

from .options import Arch, Directory, builds_ahead, size_text, target_of


def prune(
    directory: Directory = None,
    days: Annotated[float | None, typer.Option(min=0, help="Remove artifacts that are older than this.")] = None,
    megabytes: Annotated[
        float | None, typer.Option(min=0, help="Remove what was used longest ago until the rest fits.")
    ] = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="Remove what the calls of its family asked for once, but no longer do.")
    ] = False,
    cuda_arch: Arch = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be removed.")] = False,
) -> None:
    """Remove artifacts, damaged ones in any case, and the remains of killed builds."""
    keep = None
    if stale:
        with target_of(cuda_arch):
            builders, _ = builds_ahead(discovery.installed(), keep=False, is_complete=True)
            keep = [why(builder) for builder in builders]
    gone, leftovers = admin.prune(
        directory,
        older_than=None if days is None else days * 86400,
        larger_than=None if megabytes is None or megabytes == float("inf") else int(megabytes * 1e6),
        keep=keep,
        dry_run=dry_run,
    )
    for entry in gone if dry_run else ():
        typer.echo(f"{size_text(entry.size):>9}  {entry.directory}")
    for path in leftovers:
        typer.echo(f"{'leftover':>9}  {path}")
    said = "would remove" if dry_run else "removed"
    size = size_text(sum(entry.size for entry in gone))
    typer.echo(f"{said} {len(gone)} artifacts, {size}, and {len(leftovers)} leftovers of builds")
