"""What the commands on declared variants share. Without a device and an architecture, those for CUDA are left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from sgljit_core.builds.policy import why
from sgljit_core.cache.explain import Explanation
from sgljit_core.errors import NoTargetError
from sgljit_core.families import discovery


def families_with_variants() -> list[str]:
    """The families that declare variants; one that declares none has nothing to build ahead."""
    return [name for name, claims in discovery.installed().items() if discovery.load(name, claims).variants is not None]


def explain(builder: Callable[[], Any]) -> Explanation | None:
    """``why``, or None for a variant that there is no target for."""
    try:
        return why(builder)
    except NoTargetError:
        return None


def report_left_out(number: int) -> None:
    """Say how many variants there was no target for."""
    if number:
        typer.echo(
            f"left out: {number} kernels for CUDA, as there is no device here; --cuda-arch 9.0 names the architecture "
            f"that they are to be for",
            err=True,
        )
