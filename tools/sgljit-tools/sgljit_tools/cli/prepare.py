"""``sgljit prepare``, and what several commands build ahead: for which families, and for which device?"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from sgljit_core import freeze, log, parallel_compile, why
from sgljit_core.compilers import arch
from sgljit_core.errors import NoTargetError, SgljitError
from sgljit_core.paths import cache_root
from sgljit_core.plugins import discovery

from .main import added

Arch = Annotated[str | None, typer.Option(help="The architecture, such as 9.0; by default the current device's.")]


def target_of(cuda_arch: str | None) -> contextlib.AbstractContextManager[object]:
    """Compile for the architecture that the command line names, if it names one."""
    if cuda_arch is None:
        return contextlib.nullcontext()
    return arch.override_target(arch.parse_cuda_target(cuda_arch, "--cuda-arch"))


def cuda_target() -> str | None:
    """The target for CUDA, if there is a device or the command line names one."""
    try:
        return arch.cuda_target().name
    except NoTargetError:
        return None


def builds_ahead(
    families: Iterable[str],
    *,
    model: Any = None,
    ops: frozenset[str] | None = None,
    keep: bool = True,
    samples: bool = False,
    is_complete: bool = False,
) -> list[Callable[[], Any]]:
    """Functions that each build one module or kernel that the calls of families ask for.

    Reports an op that cannot be called, and, without a device or a named target, that nothing is for CUDA.

    Args:
        model, ops: as ``record`` takes them. A model is on one device: that for CUDA, or else the CPU.
        keep: whether host parts that must be compiled for this question go into the user's cache.
        samples: whether to add what the samples of the ops ask for.
        is_complete: whether to leave out families with an op that cannot be called.
    """
    from sgljit_core.jit.kernels import build  # commands that build nothing start sooner
    from sgljit_tools.recording.recorder import record

    target = cuda_target()
    if target is None and model is None:
        why = "there is no device here; name their architecture with --cuda-arch 9.0"
        typer.echo(f"left out: the kernels for CUDA, because {why}", err=True)
    on_cpu = target is None or model is None
    recording = record(families, cuda_arch=target, on_cpu=on_cpu, ops=ops, model=model, keep=keep)
    wanted = recording.wanted
    if samples:
        wanted += record(families, cuda_arch=target, on_cpu=on_cpu, samples=True, keep=keep).wanted
    for family, text in recording.stopped:
        what = f"all of {family}, as not all is known" if is_complete else f"what an op of {family} asks for"
        typer.echo(f"left out: {what}: {text}", err=True)
    unknown = {family for family, _ in recording.stopped} if is_complete else ()
    return [functools.partial(build, one) for one in wanted if one.spec.family not in unknown]


def fail_if_not_kept() -> None:
    """Fail if a build of this process could not be kept in the cache."""
    if log.was_said("cache_unwritable"):
        raise SgljitError("some builds could not be kept in the cache; see the warnings")


def prepare(
    model: Annotated[Path, typer.Option(help="A model's config.json, or the directory that holds it.")],
    tensor_parallel: Annotated[int, typer.Option(help="The number of ranks that share the attention heads.")] = 1,
    cuda_arch: Arch = None,
    engine: Annotated[str | None, typer.Option(help="The engine; by default all that have an adapter here.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Such as bfloat16; by default the config's.")] = None,
    push: Annotated[str, typer.Option(metavar="NAME", help="Then publish it on SGLJIT_REMOTE as this archive.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be done.")] = False,
) -> None:
    """Build all that a model asks for before an engine serves it, and nothing else: for 1 to 16384 tokens at a time.

    It builds for this machine's device or, with --cuda-arch, for another, which need not be here; without either, for
    the CPU. It compiles even with SGLJIT_JIT=error, which forbids compiling on demand.
    """
    from sgljit_engines.adapter import engine_ops
    from sgljit_engines.shapes import read_config

    freeze("on")
    if push:
        publish = added("cache.push", "--push")
        publish(name=push, artifact=[], dry_run=True)  # wrong settings are told before anything is compiled
    shape = read_config(model, tensor_parallel, dtype)
    ops = engine_ops(engine)
    for note in shape.notes:
        typer.echo(f"note: {note}", err=True)
    with target_of(cuda_arch):
        builders = builds_ahead(discovery.installed(), model=shape, ops=ops, keep=not dry_run)
        if not dry_run:
            parallel_compile(builders)
        found = [why(builder) for builder in builders]
        where = f"for {shape.model_type} in {shape.dtype} on {cuda_target() or 'cpu'}"
    typer.echo("\n".join(map(str, found)) if dry_run else f"{len(builders)} modules are ready {where}")
    fail_if_not_kept()
    if push:
        places = [one.artifact or cache_root() / one.location.path / (one.toolchain_key or "any") for one in found]
        own = [place for place in places if place.is_relative_to(cache_root())]
        would = "would publish" if dry_run else "publishing"
        typer.echo(f"{would} {len(own)} of them, those of the cache {cache_root()}")
        publish(name=push, artifact=own, dry_run=dry_run)
