"""``sgljit cache why``."""

from __future__ import annotations

import typer

from sgljit_core.families import registry

from .options import Arch, Family, target_of
from .variants import explain, report_left_out


def why(family: Family, cuda_arch: Arch = None) -> None:
    """Say for every declared variant of a family whether it is in the cache, and if not, why.

    Exit status 1 if one is not. Without a device and without --cuda-arch it is about the variants for the CPU.
    """
    hits = []
    with target_of(cuda_arch):
        builders = registry.declared_variants(family)
        for builder in builders:
            answer = explain(builder)
            if answer is not None:
                hits.append(answer.artifact is not None)
                typer.echo(str(answer))
    typer.echo(f"{sum(hits)} of {len(hits)} are in the cache")
    report_left_out(len(builders) - len(hits))
    if not all(hits) or (builders and not hits):
        raise typer.Exit(1)
