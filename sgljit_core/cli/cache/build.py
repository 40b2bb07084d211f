"""``sgljit cache build``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from sgljit_core.builds import policy
from sgljit_core.builds.parallel import parallel_compile
from sgljit_core.cache import admin
from sgljit_core.errors import NoTargetError, ParallelCompileError
from sgljit_core.families import registry

from .options import Arch, fail_if_not_kept, families_with_variants, report_left_out, target_of


def build(
    families: Annotated[list[str] | None, typer.Argument(help="The families; by default all.")] = None,
    cuda_arch: Arch = None,
) -> None:
    """Build every declared variant ahead, for this machine's device or, with --cuda-arch, for another.

    Without a device and without --cuda-arch it builds the variants for the CPU, and reports how many it left out. It
    compiles even with SGLJIT_JIT=error, which forbids compiling on demand.
    """
    policy.freeze("on")
    with target_of(cuda_arch):
        chosen = families or families_with_variants()
        builders = [builder for family in chosen for builder in registry.declared_variants(family)]
        left_out = _build(builders)
    held = len(admin.entries())
    typer.echo(f"{len(builders) - left_out} modules are ready; {admin.root()} holds {held} artifacts")
    report_left_out(left_out)
    fail_if_not_kept()


def _build(builders: Sequence[Callable[[], Any]]) -> int:
    """Build the variants that have a target; returns the number of the others."""
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
