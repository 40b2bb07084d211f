"""The commands that this distribution adds to ``sgljit``. sgljit-tools imports them, and brings typer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from sgljit_core.plugins.discovery import Plugin

from . import lock
from .errors import LockError, PluginDiffersError

T = TypeVar("T")


def lock_plugins(
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    check: Annotated[bool, typer.Option("--check", help="Only compare what is installed with the file.")] = False,
) -> None:
    """Write the versions and digests of all installed plugins to a file, for SGLJIT_LOCK.

    A process with SGLJIT_LOCK=FILE imports no plugin that differs from the file.
    """
    file, plugins = file.absolute(), lock.plugins()
    if check:
        _check(file, plugins)
        return
    entries = dict(_each(lambda name, plugin: (name, lock.locked(plugin)), plugins))
    lock.write(file, entries)
    for name, entry in entries.items():
        typer.echo(f"{name} {entry.version}: {len(entry.files)} files")
    typer.echo(f"wrote {file}")


def _check(file: Path, plugins: dict[str, Plugin]) -> None:
    if gone := sorted(lock.read(file).keys() - plugins.keys()):
        raise LockError(f"{file} has plugins that are not installed: {', '.join(gone)}")
    _each(lambda _, plugin: lock.check(plugin, file), plugins)
    typer.echo(f"{len(plugins)} plugins are those of {file}")


def _each(call: Callable[[str, Plugin], T], plugins: dict[str, Plugin]) -> list[T]:
    """The answers of a call for each plugin. Raises LockError with all that it refused."""
    answers, refused = [], []
    for name, plugin in plugins.items():
        try:
            answers.append(call(name, plugin))
        except (LockError, PluginDiffersError) as error:  # noqa: PERF203 - each is to be named
            refused.append(str(error))
    if refused:
        raise LockError("\n".join(refused))
    return answers
