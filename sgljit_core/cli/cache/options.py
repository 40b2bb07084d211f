"""What do several cache commands share? Their options, sizes as text, and the declared variants.

Without a device and an architecture the variants for CUDA are left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from sgljit_core import log
from sgljit_core.builds.policy import why
from sgljit_core.cache.explain import Explanation
from sgljit_core.compilers import arch
from sgljit_core.errors import NoTargetError
from sgljit_core.families import discovery

Directory = Annotated[Path | None, typer.Option("--directory", help="A root other than the user's own cache.")]
Arch = Annotated[str | None, typer.Option(help="The architecture, such as 9.0; by default the current device's.")]
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


def families_with_variants() -> list[str]:
    """The families that declare variants; the others have nothing to build ahead."""
    return [name for name in discovery.installed() if discovery.load(name).variants is not None]


def explain(builder: Callable[[], Any]) -> Explanation | None:
    """``why``, or None for a variant without a target."""
    try:
        return why(builder)
    except NoTargetError:
        return None


def fail_if_not_kept() -> None:
    """Fail if a build of this process could not be kept in the cache."""
    if log.was_said("cache_unwritable"):
        typer.echo("error: some builds could not be kept in the cache; see the warnings", err=True)
        raise typer.Exit(1)


def explained(builders: Iterable[Callable[[], Any]]) -> list[Explanation]:
    """The answer of ``why`` to each variant that has a target."""
    return [answer for builder in builders if (answer := explain(builder)) is not None]


def report_left_out(number: int) -> None:
    """Report the number of variants without a target."""
    if number:
        typer.echo(
            f"left out: {number} kernels for CUDA, because there is no device here; name their architecture with "
            f"--cuda-arch 9.0",
            err=True,
        )
