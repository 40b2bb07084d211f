"""The commands that this distribution adds to ``sgljit``. sgljit-tools imports them, and brings typer."""

from __future__ import annotations

import enum
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from sgljit_core import paths
from sgljit_core.errors import ConfigError
from sgljit_core.plugins.discovery import Plugin

from . import bundles, carried, cli, config, lock, signing, transfer
from .errors import LockError, PluginDiffersError
from .remote import Remote

T = TypeVar("T")

_SECONDS, _SECONDS_OF_A_BUNDLE = 60.0, 600.0


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


def sign(
    places: Annotated[list[Path], typer.Argument(help="Wheels, archives, and directories of artifacts.")],
    key: Annotated[Path | None, typer.Option("--sign", help="The private key; by default SGLJIT_SIGNING_KEY.")] = None,
) -> None:
    """Sign artifacts: of wheels, of archives of `sgljit cache export`, and of directories for SGLJIT_PREBUILT_PATH.

    A process with SGLJIT_TRUSTED_KEYS loads and imports no others from there. The artifacts of an archive may have 2
    GiB in all: export families one by one where they have more.
    """
    named = key or config.settings(str(Path.cwd())).signing_key
    if named is None:
        raise ConfigError("no key to sign with: name one with --sign, or in SGLJIT_SIGNING_KEY")
    private = signing.private_key(named)
    for place in places:
        of_file = carried.sign_archive if place.suffix == ".zip" else carried.sign_wheel
        did = carried.sign_directory if place.is_dir() else of_file
        if (count := did(place, private)) == 0:
            raise ConfigError(f"{place} has no artifact to sign; a wheel gets its own by `sgljit wheel`")
        typer.echo(f"signed {count} artifacts in {place}")


def push(
    families: Annotated[list[str] | None, typer.Argument(help="Such as norm; by default all.")] = None,
    target: Annotated[list[str] | None, typer.Option(help="Such as sm_90a; may be repeated.")] = None,
    name: Annotated[str, typer.Option(help="One archive of this name, such as that of a model.")] = "",
    sign: Annotated[Path | None, typer.Option(help="The private key; by default SGLJIT_SIGNING_KEY.")] = None,
    artifact: Annotated[
        list[Path] | None, typer.Option(help="Only this directory of the cache; may be repeated.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Also what is there, to sign it anew.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be done.")] = False,
) -> None:
    """Publish the artifacts of the cache on SGLJIT_REMOTE, each by itself and in an archive for each family and target.

    `sgljit prepare --push NAME` gives it what a model asks for.
    """
    directories = None if artifact is None else _in_cache(artifact, dry_run)
    choice = _choice(families, target)._replace(directories=directories)
    remote = _remote(sign)
    if dry_run and directories == set():  # `sgljit prepare` asks whether it could push, before it compiles
        cli.check_name(name)
        remote.signer()
    else:
        cli.push(remote, choice, name, dry_run=dry_run, replace=replace)


def _in_cache(places: list[Path], dry_run: bool) -> set[Path]:
    """The directories of artifacts, as the cache names them. A dry run takes those that are still to be made."""
    root = paths.cache_root()
    own = {path.resolve(): path for path in transfer.directories_of(root)}
    if dry_run:
        below = (place for place in places if place.is_relative_to(root))
        own = {at.resolve(): at for at in below if at.relative_to(root).match(transfer.ENTRIES)} | own
    for place in places:
        if place.resolve() not in own:
            raise ConfigError(f"--artifact {place} is no artifact of the cache {root}")
    return {own[place.resolve()] for place in places}


def pull(
    families: Annotated[list[str] | None, typer.Argument(help="Such as norm; by default all.")] = None,
    target: Annotated[list[str] | None, typer.Option(help="Such as sm_90a; may be repeated.")] = None,
    name: Annotated[str, typer.Option(help="One archive of this name, such as that of a model.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be done.")] = False,
) -> None:
    """Put the artifacts of archives of SGLJIT_REMOTE into the cache."""
    if status := cli.pull(_remote(), _choice(families, target), name, dry_run=dry_run):
        raise typer.Exit(status)


def _choice(families: list[str] | None, targets: list[str] | None) -> transfer.Choice:
    return transfer.Choice([name.replace("-", "_") for name in families or ()], targets or ())


class KeyAction(enum.Enum):
    """The words after ``sgljit key``."""

    NEW = "new"


def key(
    action: Annotated[KeyAction, typer.Argument(help="Make a new one.")],
    file: Annotated[Path, typer.Argument(help="The file of the private key; the public key gets FILE.pub.")],
    days: Annotated[int | None, typer.Option(help="How long the key is valid; by default without end.")] = None,
) -> None:
    """Make a key that signs artifacts."""
    typer.echo(cli.new_key(file, days))


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
    remote = _remote(sign, _SECONDS_OF_A_BUNDLE) if push else None
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
        transfer.pull_bundle(_remote(None, _SECONDS_OF_A_BUNDLE), file, pull)
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


def _remote(key: Path | None = None, seconds: float = _SECONDS) -> Remote:
    """The remote of the environment, with this limit for each object."""
    if not config.url():
        raise ConfigError("no remote is named: set SGLJIT_REMOTE to a URL")
    settings = config.settings()
    return Remote(settings._replace(timeout=seconds, signing_key=key or settings.signing_key))


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
