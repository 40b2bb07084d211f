"""Could another user have written this file? Files that decide whose code runs are read by the rules of the cache."""

from __future__ import annotations

import os
from pathlib import Path

from sgljit_core.machine import roots


def read(path: Path, most: int) -> bytes:
    """The bytes of a file, at most so many.

    Raises:
        UntrustedCacheError: another user could have written it, or could put another in its place.
        OSError: it cannot be read.
    """
    real = path.resolve(strict=True)
    roots.check(path.parent.resolve())
    roots.check(real.parent)
    with real.open("rb") as file:
        roots.check_file(real, os.fstat(file.fileno()))
        return file.read(most)
