"""How are files read that decide whose code runs, and how is a file replaced that an operator names?"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
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
    with open(os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123
        roots.check_file(real, status := os.fstat(file.fileno()))
        if not stat.S_ISREG(status.st_mode):  # such as a pipe, which nobody may ever write to
            raise OSError(errno.EINVAL, "no plain file", str(real))
        return file.read(most)


@contextlib.contextmanager
def replaced(file: Path) -> Iterator[Path]:
    """A path to write to; what is there when the block ends replaces a file, whole. One that raises changes nothing.

    Raises OSError, also where the file is something else, such as ``/dev/null``.
    """
    if file.exists() and not file.is_file():
        raise FileExistsError(errno.EEXIST, "it is there, and no plain file", str(file))
    written = file.with_name(f".{os.urandom(8).hex()}")
    try:
        yield written
        written.replace(file)
    finally:
        written.unlink(missing_ok=True)
