"""The commands that this distribution adds to ``sgljit``. sgljit-tools imports them, and brings typer."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from sgljit_core import paths
from sgljit_core.errors import ConfigError
from sgljit_core.plugins.discovery import Plugin

from . import bundles, config, lock, signing, transfer
from .errors import LockError, PluginDiffersError
from .remote import Remote

T = TypeVar("T")

_SECONDS = 600.0  # for a bundle, which may be large


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


def bundle(
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    program: Annotated[
        list[str] | None, typer.Argument(help="A Python file and its arguments, which runs here first.")
    ] = None,
    sign: Annotated[Path | None, typer.Option(help="The private key; by default SGLJIT_SIGNING_KEY.")] = None,
    push: Annotated[str, typer.Option(metavar="NAME", help="Publish it on SGLJIT_REMOTE, too, under a name.")] = "",
) -> None:
    """Write the compiled artifacts of sgljit, torch, Triton and others on this machine to one signed file.

    It has the graphs of torch.compile that PROGRAM compiled, or had from a cache, as torch gives them to the process
    that used them. Put -- before a PROGRAM with options.
    """
    remote = _remote(sign) if push else None
    if remote is not None:
        remote.signer()  # fails before the program runs, where keys are trusted and none signs
    if program:
        _run(program)
    key = sign or config.settings(str(file.absolute())).signing_key
    written = bundles.write(file.absolute(), paths.cache_root(), signing.private_key(key) if key else None)
    for name, part in written.items():
        typer.echo(f"{name}: {len(part.files)} files, {sum(size for size, _ in part.files.values())} bytes")
    typer.echo(f"wrote {file}, {f'signed with {key}' if key else 'not signed'}")
    if remote is not None:
        transfer.push_bundle(remote, file, push)
        typer.echo(f"{remote.store.shown} has it as {push}")


def unbundle(
    file: Annotated[Path, typer.Argument(help="A file that `sgljit cache bundle` wrote.")],
    part: Annotated[list[str] | None, typer.Option(help="Only this part; may be repeated.")] = None,
    pull: Annotated[str, typer.Option(metavar="NAME", help="First write FILE: the bundle of SGLJIT_REMOTE.")] = "",
) -> None:
    """Lay the artifacts of a bundle out where sgljit, torch, Triton and others look for them.

    A trusted key must have signed it, and it must be for a machine like this one.
    """
    if pull:
        transfer.pull_bundle(_remote(), file, pull)
    for name, laid in bundles.unbundle(file, *(part or ())).items():
        typer.echo(f"{name}: {laid.new} are new, {laid.there} were there")


def _run(program: list[str]) -> None:
    """Run a program as ``python FILE`` does. Raises SystemExit if it ends with another status than 0."""
    sys.argv = program
    sys.path.insert(0, str(Path(program[0]).resolve().parent))
    try:
        runpy.run_path(program[0], run_name="__main__")
    except SystemExit as error:  # most programs end with sys.exit(main())
        if error.code not in (None, 0):
            typer.echo(f"nothing is bundled, as {program[0]} ended with {error.code!r}", err=True)
            raise


def _remote(key: Path | None = None) -> Remote:
    """The remote of the environment."""
    if not config.url():
        raise ConfigError("no remote is named: set SGLJIT_REMOTE to a URL")
    settings = config.settings()
    return Remote(settings._replace(timeout=_SECONDS, signing_key=key or settings.signing_key))


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
