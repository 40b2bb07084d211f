"""How are files read that decide whose code runs, and how is a file replaced that an operator names?

Keys, locks and the directories of other libraries are no caches of sgljit. So they are checked by the rules of the
core's ``trust``, and ``SGLJIT_TRUST_SHARED_CACHE=1`` does not waive them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from sgljit_core.errors import UntrustedCacheError
from sgljit_core.machine import trust


@contextlib.contextmanager
def directory(root: Path, *names: str) -> Iterator[int]:
    """A descriptor of a directory below a root, through no link below it, while the block runs. It opens entries.

    Raises:
        UntrustedCacheError: another user could write to one of the directories, or replace it.
        OSError: one is missing, or cannot be opened.
    """
    with _no_cache():
        # Not by the core's walk of a cache, which the variable waives: to share its steps would be a call more for each
        # directory of a warm load.
        descriptor, path = trust.walk(root), root
        try:
            for name in names:
                path = path / name
                child = os.open(name, trust.ENTER | os.O_NOFOLLOW, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = child
                trust.check(path, os.fstat(child), child)
        except BaseException:
            os.close(descriptor)
            raise
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def check(root: Path) -> None:
    """Refuse a directory that another user could write to or replace. Raises as ``directory`` does."""
    with directory(root):
        pass


def check_file(path: Path, descriptor: int) -> None:
    """Refuse an open file that another user owns or can write to. Raises UntrustedCacheError."""
    with _no_cache():
        trust.check(path, os.fstat(descriptor))


@contextlib.contextmanager
def _no_cache() -> Iterator[None]:
    """Errors advise what helps here: the core's are about caches."""
    try:
        yield
    except UntrustedCacheError as error:
        remedy = f"Let it belong to you or to root, and close it to others (chmod go-w {error.path})"
        limit = "SGLJIT_TRUST_SHARED_CACHE=1 accepts caches alone"
        raise UntrustedCacheError(error.path, error.reason, f"{remedy}, or name another; {limit}") from None


def read(path: Path, most: int) -> bytes:
    """The bytes of a file, at most so many.

    Raises:
        UntrustedCacheError: another user could have written it, or could put another in its place.
        OSError: it cannot be read.
    """
    real = path.resolve(strict=True)
    check(path.parent.resolve())
    check(real.parent)
    with open(os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123
        check_file(real, file.fileno())
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # such as a pipe, which nobody may ever write to
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
    except OSError as error:
        if error.filename == str(written):  # a name that nobody has given
            error.filename = str(file)
        raise
    finally:
        written.unlink(missing_ok=True)
