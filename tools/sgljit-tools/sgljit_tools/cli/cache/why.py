"""``sgljit cache why``."""

from __future__ import annotations

import typer

from sgljit_core import ops
from sgljit_core import why as explain

from .options import Arch, Family, builds_ahead, report_left_out, target_of


def why(family: Family, cuda_arch: Arch = None) -> None:
    """Report for all that the calls of a family ask for whether it is in the cache, and if not, why.

    Exit status 1 if one is not. Without a device and without --cuda-arch it reports what is for the CPU.
    """
    with target_of(cuda_arch):
        builders, has_cuda = builds_ahead([ops[family].__name__], keep=False)
        answers = [explain(builder) for builder in builders]
    for answer in answers:
        typer.echo(str(answer))
    hits = [answer for answer in answers if answer.artifact is not None]
    typer.echo(f"{len(hits)} of {len(answers)} are in the cache")
    if not has_cuda:
        report_left_out()
    if len(hits) < len(answers):
        raise typer.Exit(1)
