"""``sgljit cache build``."""

from __future__ import annotations

from typing import Annotated

import typer

from sgljit_core import freeze, parallel_compile
from sgljit_core.plugins import discovery
from sgljit_tools.cache import admin

from .options import Arch, builds_ahead, fail_if_not_kept, report_left_out, target_of


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
        builders, has_cuda = builds_ahead(families or list(discovery.installed()))
        parallel_compile(builders)
    held = len(admin.entries())
    typer.echo(f"{len(builders)} modules are ready; {admin.root()} holds {held} artifacts")
    if not has_cuda:
        report_left_out()
    fail_if_not_kept()
