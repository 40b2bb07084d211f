"""What do families want built ahead, and for which device? Several commands build it, or look at it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from sgljit_core import log
from sgljit_core.compilers import arch
from sgljit_core.errors import NoTargetError, SgljitError

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
