"""``sgljit cache``: look at the build cache, fill it ahead, ship it, clean it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from sgljit_core import freeze, log, ops, parallel_compile, why as explain
from sgljit_core.errors import SgljitError
from sgljit_core.plugins import discovery
from sgljit_tools import installation
from sgljit_tools.cache import admin, archive

from .main import added
from .prepare import Arch, builds_ahead, fail_if_not_kept, target_of

Directory = Annotated[Path | None, typer.Option("--directory", help="A root other than the user's own cache.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Long = Annotated[bool, typer.Option("--long", help="Add the registers, shared memory and spills of each kernel.")]

app = typer.Typer(no_args_is_help=True, help="Look at the build cache, fill it ahead, ship it, clean it.")


@app.command("path")
def show_path() -> None:
    """Show where the cache is."""
    typer.echo(admin.root())


@app.command("list")
def list_entries(directory: Directory = None, long: Long = False, as_json: AsJson = False) -> None:
    """List the artifacts: those of a directory, or of the user's own cache and of the installed plugins."""
    by_root = [(place, plugin, admin.entries(place, vouched=bool(plugin))) for place, plugin in _roots(directory)]
    if as_json:
        _print(artifacts=[_facts(entry) for *_, found in by_root for entry in found])
        return
    for place, plugin, found in by_root:
        if plugin:
            typer.echo(f"{plugin} carries, in {place}:")
        for entry in found:
            manifest = entry.manifest
            what = f"{manifest.build}, {manifest.seconds:.1f} s" if manifest else f"damaged: {entry.problem}"
            if long and manifest:
                what += "".join(f", {count} {name.replace('_', ' ')}" for name, count in manifest.resources.items())
            typer.echo(f"{decimal(entry.size):>9}  {entry.directory.parent.name[:8]}  {what}")
        typer.echo(f"{len(found)} artifacts, {decimal(sum(entry.size for entry in found))}")


@app.command("verify")
def verify(directory: Directory = None, as_json: AsJson = False) -> None:
    """Read every artifact that `sgljit cache list` lists. Exit status 1 if one does not match its manifest."""
    places = _roots(directory)
    total = sum(len(admin.entries(place, vouched=bool(plugin))) for place, plugin in places)
    damaged = [entry for place, plugin in places for entry in admin.verify(place, vouched=bool(plugin))]
    if as_json:
        _print(total=total, damaged=[_facts(entry) for entry in damaged])
    else:
        for entry in damaged:
            typer.echo(f"{entry.directory}: {entry.problem}")
        typer.echo(f"{len(damaged)} damaged of {total}")
    if damaged:
        raise typer.Exit(1)


def _roots(directory: Path | None) -> list[tuple[Path | None, str]]:
    """The named directory, or else the user's own cache and what plugins carry; each with its plugin, or ""."""
    return [(directory, ""), *([] if directory else sorted(installation.carried_artifacts().items()))]


def _facts(entry: admin.Entry) -> dict[str, Any]:
    """An artifact for ``--json``; one whose manifest cannot be read has only its place, size and problem."""
    named = ("build", "family", "target", "plugin", "core", "seconds", "resources")
    known = {name: getattr(entry.manifest, name) for name in named} if entry.manifest else {}
    return {"directory": str(entry.directory), "bytes": entry.size, "problem": entry.problem, **known}


def _print(**facts: Any) -> None:
    typer.echo(json.dumps(facts, indent=2))


@app.command("why")
def why(
    family: Annotated[str, typer.Argument(help="The family's name, as in `sgljit list`.")],
    cuda_arch: Arch = None,
    as_json: AsJson = False,
) -> None:
    """Report for all that the calls of a family ask for whether it is in the cache, and if not, why.

    Exit status 1 if one is not. Without a device and without --cuda-arch it reports what is for the CPU.
    """
    with target_of(cuda_arch):
        answers = [explain(builder) for builder in builds_ahead([ops[family].__name__], keep=False)]
    hits = [answer for answer in answers if answer.artifact is not None]
    if as_json:
        _print(builds=[{"build": one.build, "is_hit": one.artifact is not None, "text": str(one)} for one in answers])
    else:
        for answer in answers:
            typer.echo(str(answer))
        typer.echo(f"{len(hits)} of {len(answers)} are in the cache")
    if len(hits) < len(answers):
        raise typer.Exit(1)


@app.command("build")
def build(
    families: Annotated[list[str] | None, typer.Argument(help="The families; by default all.")] = None,
    cuda_arch: Arch = None,
) -> None:
    """Build ahead what the calls of families ask for, for this machine's device or, with --cuda-arch, for another.

    These are the calls that a family declares, or else the samples of its ops. Without a device and without --cuda-arch
    it builds for the CPU. It compiles even with SGLJIT_JIT=error, which forbids compiling on demand.
    """
    freeze("on")
    with target_of(cuda_arch):
        builders = builds_ahead([ops[name].__name__ for name in families] if families else discovery.installed())
        parallel_compile(builders)
    typer.echo(f"{len(builders)} modules are ready; {admin.root()} holds {len(admin.entries())} artifacts")
    fail_if_not_kept()


@app.command("prune")
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
    as_json: AsJson = False,
) -> None:
    """Remove artifacts, damaged ones in any case, and the remains of killed builds."""
    keep = None
    if stale:
        with target_of(cuda_arch):
            keep = [explain(builder) for builder in builds_ahead(discovery.installed(), keep=False, is_complete=True)]
    gone, leftovers = admin.prune(
        directory,
        older_than=None if days is None else days * 86400,
        larger_than=None if megabytes is None or megabytes == float("inf") else int(megabytes * 1e6),
        keep=keep,
        dry_run=dry_run,
    )
    if as_json:
        _print(artifacts=[_facts(entry) for entry in gone], leftovers=[*map(str, leftovers)], dry_run=dry_run)
        return
    for entry in gone:
        typer.echo(f"{decimal(entry.size):>9}  {entry.directory}")
    for path in leftovers:
        typer.echo(f"{'leftover':>9}  {path}")
    said, size = "would remove" if dry_run else "removed", decimal(sum(entry.size for entry in gone))
    typer.echo(f"{said} {len(gone)} artifacts, {size}, and {len(leftovers)} leftovers of builds")


@app.command("export")
def export_archive(
    file: Annotated[Path, typer.Argument(help="The file to write, a .zip.")],
    directory: Directory = None,
    family: Annotated[str | None, typer.Option(help="Only this family.")] = None,
    target: Annotated[str | None, typer.Option(help="Only this target, such as sm_90a.")] = None,
    sign: Annotated[Path | None, typer.Option(help="The private key that signs them (with sgljit-remote).")] = None,
) -> None:
    """Write artifacts into one file."""
    signs = added("sign", "--sign") if sign else lambda *_: None
    signs([], sign)  # fails before anything is written, where the key cannot be used
    count = archive.export_archive(file, directory, family=family and family.replace("-", "_"), target=target)
    if count == 0:
        held = {(entry.manifest.family, entry.manifest.target) for entry in admin.entries(directory) if entry.manifest}
        families, targets = (", ".join(sorted(set(names))) for names in zip(*held or {("none", "none")}, strict=True))
        raise SgljitError(f"nothing to write; the cache has the families {families} and targets {targets}")
    typer.echo(f"wrote {count} artifacts to {file}")
    if log.was_said("artifact_damaged"):
        raise SgljitError("some artifacts could not be written; see the warnings")
    signs([file], sign)


@app.command("import")
def import_archive(
    file: Annotated[Path, typer.Argument(help="An archive that `sgljit cache export` wrote.")],
    directory: Directory = None,
) -> None:
    """Put the artifacts of an archive into the cache, or into a directory of prebuilt ones."""
    typer.echo(f"{archive.import_archive(file, directory)} artifacts are in {directory or admin.root()}")
