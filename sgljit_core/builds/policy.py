"""May something be compiled now?

Serving must not stall on a compiler, so a process may forbid it once it is warm; while a CUDA stream captures a graph
it is never allowed. A question (``explaining``) is answered without compiling or loading anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sgljit_core.cache.store import Slot
from sgljit_core.compilers import arch
from sgljit_core.config import settings
from sgljit_core.errors import SgljitError

__all__ = ["Explained", "Explanation", "explaining", "forbidden_by", "freeze", "is_capturing", "is_explaining"]

Mode = Literal["on", "warn", "error"]

_frozen: list[Mode] = []  # what freeze() asked for last; the environment's word where it never did


def freeze(mode: Mode = "error") -> None:
    """Say what happens from now on when something is in no tier of the cache and must be compiled.

    Call it after the warm-up, so that an op that was forgotten shows at once and does not stall a request.

    Args:
        mode: "error" raises CompileForbiddenError, "warn" logs a warning and compiles, "on" compiles.

    Raises:
        ValueError: for any other mode.
    """
    if mode not in ("on", "warn", "error"):
        raise ValueError(f'freeze() takes "error", "warn" or "on", got {mode!r}')
    _frozen[:] = [mode]


def forbidden_by() -> tuple[Mode, str]:
    """The mode, and who asked for it, for messages."""
    if _frozen:
        return _frozen[0], f'freeze("{_frozen[0]}")'
    mode = settings().jit
    return ("on" if mode == "on" else "warn" if mode == "warn" else "error"), f"SGLJIT_JIT={mode}"


def is_capturing() -> bool:
    """Whether the current CUDA stream is capturing a graph. Initialises nothing."""
    cuda = arch.cuda_in_use()
    return cuda is not None and bool(cuda.is_current_stream_capturing())


@dataclass(frozen=True)
class Explanation:
    """Why a build is a hit or a miss.

    Attributes:
        build: what messages call it.
        slot: where its artifacts would lie below a root.
        artifact: the directory of the artifact that serves; None for a miss.
        nearest: the directory of the artifact of the same module that differs least; None where there is none.
        differences: what sets the build apart from ``nearest``, most telling first.
        other_targets: where ``nearest`` is None, the targets that there are artifacts of the same module for.
    """

    build: str
    slot: Slot
    artifact: Path | None
    nearest: Path | None = None
    differences: tuple[str, ...] = ()
    other_targets: tuple[str, ...] = ()

    @property
    def source_key(self) -> str:
        """Its source key."""
        return self.slot.source_key

    def __str__(self) -> str:
        if self.artifact is not None:
            return f"{self.build}: a hit, {self.artifact}"
        if self.nearest is None:
            others = f" (there are some for {', '.join(self.other_targets)})" if self.other_targets else ""
            return f"{self.build}: a miss, no artifact of this module and target was ever built here{others}"
        listed = ", ".join(self.differences)
        return f"{self.build}: a miss; the nearest artifact ({self.nearest.parent.name[:8]}) differs: {listed}"


class Explained(SgljitError):  # noqa: N818 - an answer, not an error
    """The answer to a question, raised in place of loading, so that no caller keeps a module that is none."""

    def __init__(self, explanation: Explanation) -> None:
        self.explanation = explanation
        super().__init__(str(explanation))


_explaining: ContextVar[bool] = ContextVar("sgljit_explaining", default=False)


@contextmanager
def explaining() -> Iterator[None]:
    """Inside the block every request for a module raises ``Explained``."""
    token = _explaining.set(True)
    try:
        yield
    finally:
        _explaining.reset(token)


def is_explaining() -> bool:
    """Whether requests are questions."""
    return _explaining.get()
