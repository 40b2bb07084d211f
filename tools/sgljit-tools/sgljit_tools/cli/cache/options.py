"""What do several cache commands share? Their options, sizes as text, and what families want built ahead.

Without a device and an architecture the kernels for CUDA are left out.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from sgljit_core import log
from sgljit_core.compilers import arch
from sgljit_core.errors import NoTargetError
from sgljit_core.jit.kernels import build
from sgljit_tools.errors import RecordingError
from sgljit_tools.recording.recorder import record

Directory = Annotated[Path | None, typer.Option("--directory", help="A root other than the user's own cache.")]
Arch = Annotated[str | None, typer.Option(help="The architecture, such as 9.0; by default the current device's.")]
Builder = Callable[[], Any]
Family = Annotated[str, typer.Argument(help="The family's name, as in `sgljit list`.")]


def target_of(cuda_arch: str | None) -> contextlib.AbstractContextManager[object]:
    """Compile for the architecture that the command line names, if it names one."""
    return contextlib.nullcontext() if cuda_arch is None else arch.override_target(cuda_arch, "--cuda-arch")


def size_text(size: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def builds_ahead(
    families: Iterable[str], *, keep: bool = True, is_complete: bool = False
) -> tuple[list[Builder], bool]:
    """Functions that each build one module or kernel that the calls of families ask for.

    Args:
        keep: whether host parts that must be compiled for this question go into the user's cache.
        is_complete: whether it is an error if an op cannot be called; else it is reported.

    Returns:
        The functions, and whether the kernels for CUDA are among them: they need a device, or a target that is named.
    """
    try:
        cuda_arch = arch.cuda_target().name
    except NoTargetError:
        cuda_arch = None
    recording = record(families, cuda_arch=cuda_arch, on_cpu=True, keep=keep)
    for text in recording.stopped:
        typer.echo(f"left out: what an op asks for that could not be called: {text}", err=True)
    if recording.stopped and is_complete:
        raise RecordingError(
            "what the families ask for is not known: the ops above could not be called; declare calls in PACKAGE.calls"
        )
    return [functools.partial(build, one) for one in recording.wanted], cuda_arch is not None


def fail_if_not_kept() -> None:
    """Fail if a build of this process could not be kept in the cache."""
    if log.was_said("cache_unwritable"):
        typer.echo("error: some builds could not be kept in the cache; see the warnings", err=True)
        raise typer.Exit(1)


def report_left_out() -> None:
    """Report that there is no device to build kernels for."""
    typer.echo(
        "left out: the kernels for CUDA, because there is no device here; name their architecture with --cuda-arch 9.0",
        err=True,
    )
