"""``sgljit cache path``."""

from __future__ import annotations

import typer

from sgljit_tools.cache import admin


def show_path() -> None:
    """Show where the cache is."""
    typer.echo(admin.root())
