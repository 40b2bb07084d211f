"""What several cache commands share: their options, and how they show sizes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from sgljit_core.compilers import arch

Directory = Annotated[Path | None, typer.Option("--directory", help="Another root than the user's own cache.")]
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
