"""``sgljit cache``: look at the build cache, fill it ahead, ship it, clean it."""

from __future__ import annotations

import typer

from .archive import export_archive, import_archive
from .build import build
from .list import list_entries, verify
from .path import show_path
from .prune import prune
from .why import why

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Look at the build cache, fill it ahead, ship it, clean it.")
app.command("path")(show_path)
app.command("list")(list_entries)
app.command("verify")(verify)
app.command("why")(why)
app.command("build")(build)
app.command("prune")(prune)
app.command("export")(export_archive)
app.command("import")(import_archive)
