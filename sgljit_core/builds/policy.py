"""May something be compiled now?

Serving must not stall on a compiler, so a process may forbid it once it is warm; while a CUDA stream captures a graph
it is never allowed. ``why`` asks whether something would be compiled, and compiles and loads nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from sgljit_core.compilers import arch
from sgljit_core.config import Mode, settings
from sgljit_core.errors import SgljitError

if TYPE_CHECKING:
    from sgljit_core.cache.explain import Explanation


_frozen: list[Mode] = []  # the mode of the last freeze(); empty before the first


def freeze(mode: Mode = "error") -> None:
    """Say what happens from now on when something is in no tier of the cache and must be compiled.

    Call it after the warm-up, so that an op that was forgotten shows at once and does not stall a request. Another
    mode than these is a ValueError.

    Args:
        mode: "error" raises CompileForbiddenError, "warn" logs a warning and compiles, "on" compiles.
    """
    if mode not in ("on", "warn", "error"):
        raise ValueError(f'freeze() takes "error", "warn" or "on", got {mode!r}')
    _frozen[:] = [mode]


def forbidden_by() -> tuple[Mode, str]:
    """The mode, and who asked for it, for messages."""
    if _frozen:
        return _frozen[0], f'freeze("{_frozen[0]}")'
    mode = settings().jit
    return mode, f"SGLJIT_JIT={mode}"


def is_capturing() -> bool:
    """Whether the current CUDA stream is capturing a graph. Initialises nothing."""
    cuda = arch.cuda_in_use()
    return cuda is not None and bool(cuda.is_current_stream_capturing())


def may_fetch() -> bool:
    """Whether a remote may be asked: not for a question, while a graph is captured, or after the warm-up."""
    return not (explaining.get() or is_capturing() or _frozen not in ([], ["on"]))


class Explained(SgljitError):  # noqa: N818 - an answer, not an error
    """The answer to a question, raised in place of loading, so that no caller keeps a module that is none."""

    def __init__(self, explanation: Explanation) -> None:
        self.explanation = explanation
        super().__init__(str(explanation))


explaining: ContextVar[bool] = ContextVar("sgljit_explaining", default=False)  # whether requests are questions


def why(builder: Callable[[], Any]) -> Explanation:
    """Whether the cache has what ``builder`` would load, and if not, what sets it apart from the nearest artifact.

    ``builder`` takes no arguments and loads one module or kernel. Nothing is compiled or loaded here.
    Raises ValueError: the builder did not ask for anything, because this process has loaded it before.
    """
    token = explaining.set(True)  # every request for code raises ``Explained``
    try:
        builder()
    except Explained as answer:
        return answer.explanation
    finally:
        explaining.reset(token)
    raise ValueError("the builder did not ask for a module; ask in a process where it has not been loaded before")
