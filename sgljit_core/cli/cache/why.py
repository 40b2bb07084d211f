"""``sgljit cache why``."""

from __future__ import annotations

import typer

from sgljit_core.families import registry

from .options import Arch, Family, explained, report_left_out, target_of


def why(family: Family, cuda_arch: Arch = None) -> None:
    """Report for every declared variant of a family whether it is in the cache, and if not, why.

    Exit status 1 if one is not. Without a device and without --cuda-arch it reports the variants for the CPU only.
    """
    with target_of(cuda_arch):
        builders = registry.declared_variants(family)
        answers = explained(builders)
    for answer in answers:
        typer.echo(str(answer))
    hits = [answer for answer in answers if answer.artifact is not None]
    typer.echo(f"{len(hits)} of {len(answers)} are in the cache")
    report_left_out(len(builders) - len(answers))
    if len(hits) < len(answers) or (builders and not hits):
        raise typer.Exit(1)
