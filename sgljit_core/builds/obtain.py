"""How a request for code is answered: find it in a tier of the cache, or else have it made."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from sgljit_core.errors import WANTS, ResourceError, SgljitError, SourceChangedError

from .finding import Finder
from .request import Request

T = TypeVar("T")

_ATTEMPTS = 5


def until_current(attempt: Callable[[], T]) -> T:
    """Call ``attempt`` again, up to five times in all, as long as sources are written while they are compiled.

    Raises:
        SourceChangedError: they were written each time.
        ResourceError: there was no file descriptor or no memory for it in the kernel.
    """
    try:
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(SourceChangedError):
                return attempt()
        return attempt()
    except OSError as error:
        if isinstance(error, SgljitError) or error.errno not in WANTS:
            raise
        raise ResourceError("a kernel cannot be looked for or made", error) from error


def obtain(request: Request[T]) -> T:
    """The code that a request asks for, from a tier or made now.

    Raises:
        CompileForbiddenError, CaptureError: it must be made and may not be.
        ToolchainNotFoundError: it must be made and a compiler is missing.
        CompileError: it cannot be made.
        StorageError: there is no directory to make it in.
        SourceChangedError: a source was written while it was being made; make a new request.
        UntrustedCacheError: somebody else could have written a tier.
    """
    finder = Finder(request)
    found = finder.find()
    if found is not None:
        return found[0]
    from .making import make_once  # a warm start needs nothing that decides, locks, compiles or publishes

    return make_once(finder)
