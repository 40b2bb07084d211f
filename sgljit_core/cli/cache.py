"""``sgljit cache``: the cache's command line. Each command is one function of ``cache``, or of a family."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sgljit_core.builds import policy, progress
from sgljit_core.builds.parallel import parallel_compile
from sgljit_core.cache import admin as cache
from sgljit_core.compilers import arch
from sgljit_core.errors import NoTargetError, ParallelCompileError
from sgljit_core.families import discovery, registry

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Look at the build cache, fill it ahead, ship it, clean it.")

Directory = Annotated[Path | None, typer.Option("--directory", help="Another root than the user's own cache.")]
Arch = Annotated[str | None, typer.Option(help="The architecture, such as 9.0; by default the current device's.")]
Family = Annotated[str, typer.Argument(help="The family's name, as in `sgljit list`.")]


@app.command("path")
def show_path() -> None:
    """Show where the cache is."""
    typer.echo(cache.root())


@app.command("list")
def list_entries(directory: Directory = None) -> None:
    """List the artifacts: those of a directory, or of the user's own cache and of the installed plugins."""
    _list(cache.entries(directory))
    for place, plugin in _carried(directory):
        typer.echo(f"{plugin} carries, in {place}:")
        _list(cache.entries(place, vouched=True))


def _list(found: Sequence[cache.Entry]) -> None:
    for entry in found:
        manifest = entry.manifest
        what = f"{manifest.build}, {manifest.seconds:.1f} s" if manifest else f"damaged: {entry.problem}"
        typer.echo(f"{_bytes(entry.size):>9}  {entry.directory.parent.name[:8]}  {what}")
    typer.echo(f"{len(found)} artifacts, {_bytes(sum(entry.size for entry in found))}")


@app.command("verify")
def verify(directory: Directory = None) -> None:
    """Read every artifact that `sgljit cache list` lists. Exit status 1 if one is not what its manifest says."""
    damaged, total = cache.verify(directory), len(cache.entries(directory))
    for place, _ in _carried(directory):
        damaged += cache.verify(place, vouched=True)
        total += len(cache.entries(place, vouched=True))
    for entry in damaged:
        typer.echo(f"{entry.directory}: {entry.problem}")
    typer.echo(f"{len(damaged)} damaged of {total}")
    if damaged:
        raise typer.Exit(1)


@app.command("why")
def why(family: Family, cuda_arch: Arch = None) -> None:
    """Say for every declared variant of a family whether it is in the cache, and if not, why.

    Exit status 1 if one is not. Without a device and without --cuda-arch it is about what is for the CPU.
    """
    hits = []
    with _target(cuda_arch):
        builders = registry.declared_variants(family)
        for builder in builders:
            answer = _why(builder)
            if answer is not None:
                hits.append(answer.artifact is not None)
                typer.echo(str(answer))
    typer.echo(f"{sum(hits)} of {len(hits)} are in the cache")
    _tell_left_out(len(builders) - len(hits))
    if not all(hits) or (builders and not hits):
        raise typer.Exit(1)


@app.command("build")
def build(
    families: Annotated[list[str] | None, typer.Argument(help="The families; by default all.")] = None,
    cuda_arch: Arch = None,
) -> None:
    """Build every declared variant ahead, for this machine's device or, with --cuda-arch, for another.

    Without a device and without --cuda-arch it builds what is for the CPU, and tells what it left out. It compiles
    whatever SGLJIT_JIT says: that is about compiling on demand.
    """
    policy.freeze("on")
    with _target(cuda_arch):
        chosen = families or _families_with_variants()
        builders = [builder for family in chosen for builder in registry.declared_variants(family)]
        left_out = _build(builders)
    held = len(cache.entries())
    typer.echo(f"{len(builders) - left_out} modules are built or were there; {cache.root()} holds {held} artifacts")
    _tell_left_out(left_out)
    if progress.was_said("cache_unwritable"):
        typer.echo("error: not all that was built could be kept; see the warnings", err=True)
        raise typer.Exit(1)


@app.command("prune")
def prune(
    directory: Directory = None,
    days: Annotated[float | None, typer.Option(min=0, help="Remove what was built more days ago.")] = None,
    megabytes: Annotated[
        float | None, typer.Option(min=0, help="Remove the oldest until the rest takes no more.")
    ] = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="Remove what families that declare their variants do not declare any more.")
    ] = False,
    cuda_arch: Arch = None,
) -> None:
    """Remove artifacts, damaged ones in any case, and what killed builds left behind."""
    keep = None
    if stale:
        with _target(cuda_arch):
            declared = [builder for name in _families_with_variants() for builder in registry.declared_variants(name)]
            keep = [answer for builder in declared if (answer := _why(builder)) is not None]
    gone = cache.prune(
        directory,
        older_than=None if days is None else days * 86400,
        larger_than=None if megabytes is None else int(megabytes * 1e6),
        keep=keep,
    )
    typer.echo(f"removed {len(gone)} artifacts, {_bytes(sum(entry.size for entry in gone))}")


@app.command("export")
def export_archive(
    file: Annotated[Path, typer.Argument(help="What to write: a .tar, .tar.gz or .tar.xz.")],
    directory: Directory = None,
    family: Annotated[str | None, typer.Option(help="Only this family.")] = None,
    target: Annotated[str | None, typer.Option(help="Only this target, such as sm_90a.")] = None,
) -> None:
    """Write artifacts into one file."""
    family = family and family.replace("-", "_")
    count = cache.export_archive(file, directory, family=family, target=target)
    typer.echo(f"wrote {count} artifacts to {file}")
    if progress.was_said("artifact_damaged"):
        typer.echo("error: not all that was asked for could be written; see the warnings", err=True)
        raise typer.Exit(1)
    if count == 0:
        manifests = [entry.manifest for entry in cache.entries(directory) if entry.manifest]
        families = ", ".join(sorted({manifest.family for manifest in manifests})) or "none"
        targets = ", ".join(sorted({manifest.target for manifest in manifests})) or "none"
        typer.echo(f"error: nothing to write; there are the families {families} and the targets {targets}", err=True)
        raise typer.Exit(1)


@app.command("import")
def import_archive(
    file: Annotated[Path, typer.Argument(help="An archive that `sgljit cache export` wrote.")],
    directory: Directory = None,
) -> None:
    """Put the artifacts of an archive into the cache, or into a directory of prebuilt ones."""
    typer.echo(f"{cache.import_archive(file, directory)} artifacts are in {directory or cache.root()}")


def _families_with_variants() -> list[str]:
    """The families that declare variants; one that declares none has nothing to build ahead."""
    return [name for name, claims in discovery.installed().items() if discovery.load(name, claims).variants is not None]


def _carried(directory: Path | None) -> list[tuple[Path, str]]:
    """The roots to look at besides the user's own cache, where no directory is named."""
    return [] if directory else sorted(cache.carried().items())


def _build(builders: Sequence[Callable[[], Any]]) -> int:
    """Build all that there is a target for, and tell how many are left out for want of one."""
    try:
        parallel_compile(builders)
    except ParallelCompileError as error:
        others = [failure for failure in error.failures if not isinstance(failure, NoTargetError)]
        if others:
            raise ParallelCompileError(others, len(builders)) from others[0]
        if len(error.failures) == len(builders):
            raise error.failures[0] from None
        return len(error.failures)
    return 0


def _why(builder: Callable[[], Any]) -> cache.Explanation | None:
    """``cache.why``, or None of what there is no target for."""
    try:
        return cache.why(builder)
    except NoTargetError:
        return None


def _tell_left_out(number: int) -> None:
    if number:
        typer.echo(
            f"left out: {number} kernels for CUDA, as there is no device here; --cuda-arch 9.0 names the architecture "
            f"that they are to be for",
            err=True,
        )


def _target(cuda_arch: str | None) -> contextlib.AbstractContextManager[object]:
    return contextlib.nullcontext() if cuda_arch is None else arch.override_target(cuda_arch, "--cuda-arch")


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
