"""Which directory may be a cache, and how is it made?

A directory becomes a cache if it is missing or empty. It then gets a ``CACHEDIR.TAG``, by which backup programs know a
cache, and whose text says that it is one of sgljit's. Any other directory is refused: a cache removes what is old, and
must not do so among somebody's files.

``SGLJIT_TRUST_SHARED_CACHE=1`` trusts whoever can write to a cache, and lets the group read and write all that is made.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from sgljit_core.config import can_be_guessed, settings
from sgljit_core.errors import NotACacheError

from . import trust
from .trust import check_file as check_file, directory as directory

TAG = "CACHEDIR.TAG"
_TEXT = b"""\
Signature: 8a477f597d28d172789f06886806bc55
# This directory is a cache of sgljit, which removes old files from it. See docs/cache.md of sgljit-core.
"""
_MARK = _TEXT.partition(b", which")[0]
_MAY_BE_THERE = {TAG, "lost+found"}  # of an empty directory: the second is a file system's own
_NAMED = 4  # files that an error names


@contextlib.contextmanager
def made(root: Path, *names: str) -> Iterator[int]:
    """``directory``, which is made where it is missing, and the root a cache.

    Raises, besides what ``directory`` raises, NotACacheError: the root holds files of somebody else.
    """
    descriptor, path = _made(root), root
    for name in names:
        path = path / name
        descriptor = _made_in(descriptor, path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def check(root: Path) -> None:
    """Raise UntrustedCacheError for a root that another user could replace or write to. A missing one is fine."""
    with contextlib.suppress(FileNotFoundError), directory(root):
        pass


def make(root: Path, *names: str) -> Path:
    """Make a directory of a cache, and the cache, unless they are there; its path. Raises as ``made`` does."""
    with made(root, *names):
        return root.joinpath(*names)


def check_is_cache(root: Path) -> None:
    """Raise NotACacheError for a directory that holds files and no tag of ours, OSError where it cannot be read."""
    with directory(root) as descriptor:
        _refuse_strangers(descriptor, root)


def share(made: Path | int) -> None:
    """Give the group of a file or directory of ours the owner's rights, where ``SGLJIT_TRUST_SHARED_CACHE=1``.

    The umask does not matter, and a directory's set-group-ID bit stays. Nothing of another member's is changed.
    """
    if settings().trust_shared_cache:
        with contextlib.suppress(OSError):
            mode = stat.S_IMODE(os.stat(made).st_mode)  # noqa: PTH116 - or a descriptor
            os.chmod(made, mode | (mode & 0o700) >> 3)  # noqa: PTH101


def _made(root: Path) -> int:
    if settings().trust_shared_cache and not can_be_guessed(root):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(root, trust.ENTER)
    else:
        descriptor = trust.walk(root, make=True)
    try:
        _claim(descriptor, root)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _made_in(parent: int, path: Path) -> int:
    """Open a directory in an open one, which is closed, and make it where it is missing."""
    try:
        with contextlib.suppress(FileNotFoundError):
            return trust.enter_cache(parent, path)
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.mkdir(path.name, 0o700, dir_fd=parent)
            share(path)
        return trust.enter_cache(parent, path)
    finally:
        os.close(parent)


def _claim(descriptor: int, root: Path) -> None:
    """Make an empty directory a cache. Several processes may do so at once, each before it writes anything else."""
    if _is_tagged(descriptor):
        return
    _refuse_strangers(descriptor, root)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(TAG, flags, 0o644, dir_fd=descriptor)
    try:
        os.write(file, _TEXT)
        share(file)
    finally:
        os.close(file)


def _is_tagged(directory: int) -> bool | None:
    """True for a tag of sgljit's that this user may trust, False for any other; None where it is missing or empty."""

    def opened(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)

    try:
        with open(TAG, "rb", opener=opened) as file:
            status = os.fstat(file.fileno())
            check_file(Path(TAG), status)
            text = file.read(len(_TEXT)) if stat.S_ISREG(status.st_mode) else b"no file"
            return text.startswith(_MARK) if text else None
    except OSError as error:
        return None if isinstance(error, FileNotFoundError) else False


def _refuse_strangers(directory: int, root: Path) -> None:
    """Raise NotACacheError for a directory with files that keep it from becoming a cache, a foreign tag among them."""
    listing = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        names = os.listdir(listing)  # noqa: PTH208 - of a descriptor
    finally:
        os.close(listing)
    found = sorted(name for name in names if name not in _MAY_BE_THERE)
    # Looked for after the names: another process may have made it a cache, and then written to it, just now.
    is_tagged = _is_tagged(directory)
    if strangers := [] if is_tagged else [*found, TAG] if is_tagged is False else found:
        raise NotACacheError(root, strangers[:_NAMED])
