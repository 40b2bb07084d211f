"""Could somebody else have written this file?

The cache holds code that runs as the user. So directories and files on the way to it belong to the user or
to root, are not symbolic links and cannot be written by group or others. ``SGLJIT_TRUST_SHARED_CACHE=1`` waives it,
and lets the group read and write all that is made.
The directories above the cache's root are the operator's business.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from sgljit_core import paths
from sgljit_core.config import settings
from sgljit_core.errors import UntrustedCacheError


def check_root(root: Path) -> None:
    """Refuse the root of a tier that others could have written. One that does not exist is fine.

    Raises:
        UntrustedCacheError: with what is wrong and the command that rights it.
    """
    try:
        status = root.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(status.st_mode) and not settings().trust_shared_cache:
        target = os.path.realpath(root)  # also of a link to itself
        raise _untrusted(root, f"is a symbolic link (to {target})", f"Name the directory itself, {target}")
    check(root, status)


def make_root(root: Path) -> None:
    """Make the root of a tier, for the user alone, unless it is there; then check it.

    Raises:
        UntrustedCacheError: others could have written it.
        OSError: it cannot be made.
    """
    if not root.is_dir():
        make_directories(root.parent, shared=False)
        make_directory(root)
    check_root(root)


def make_directories(path: Path, *, shared: bool = True) -> None:
    """Make a directory and those above it that are missing, all for the user alone, whatever the umask says.

    ``Path.mkdir(parents=True, mode=...)`` gives the mode to the last one only.

    Args:
        shared: as in ``make_directory``.

    Raises:
        OSError: one cannot be made.
    """
    if path.is_dir():
        return
    make_directories(path.parent, shared=shared)
    make_directory(path, shared=shared)


def make_directory(path: Path, *, shared: bool = True) -> None:
    """Make a directory for the user alone, unless it is there.

    Args:
        shared: for the group as well, where ``SGLJIT_TRUST_SHARED_CACHE=1``.

    Raises:
        OSError: it cannot be made.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    if shared:
        share(path)


def share(made: Path | int) -> None:
    """Give the group of a file or directory of ours the owner's rights, where ``SGLJIT_TRUST_SHARED_CACHE=1``.

    The umask does not matter, and a directory's set-group-ID bit stays. One that is another member's stays as it is.
    """
    if settings().trust_shared_cache:
        with contextlib.suppress(OSError):
            mode = stat.S_IMODE(os.stat(made).st_mode)  # noqa: PTH116 - or a descriptor
            os.chmod(made, mode | (mode & 0o700) >> 3)  # noqa: PTH101


def check(path: Path, status: os.stat_result) -> None:
    """Refuse a file or directory by its owner and mode.

    Raises:
        UntrustedCacheError: with what is wrong and the command that rights it.
    """
    foreign = status.st_uid not in (os.getuid(), 0)
    open_to_others = status.st_mode & 0o022 and not stat.S_ISLNK(status.st_mode)
    if not (foreign or open_to_others) or settings().trust_shared_cache:
        return
    if foreign:
        raise _untrusted(
            path,
            f"belongs to user {status.st_uid}, not to you (user {os.getuid()})",
            f"Take it over (chown -R {os.getuid()} {path})",
        )
    mode = stat.S_IMODE(status.st_mode)
    raise _untrusted(path, f"can be written by group or others (mode {mode:04o})", f"Close it (chmod -R go-w {path})")


def _untrusted(path: Path, reason: str, remedy: str) -> UntrustedCacheError:
    if any(path.is_relative_to(place) for named in settings().prebuilt for place in (named, named.resolve())):
        instead = "leave it out of SGLJIT_PREBUILT_PATH"
    elif path.is_relative_to(paths.cache_root()):
        instead = "set SGLJIT_CACHE_DIR to another directory"
    else:
        instead = "name another directory"
    return UntrustedCacheError(path, reason, f"{remedy}, or {instead}, or accept it with SGLJIT_TRUST_SHARED_CACHE=1")


_OTHER_PLACES = "let TMPDIR and XDG_RUNTIME_DIR name directories of your own"


def private_directory(path: Path) -> Path:
    """Make ``path`` and check that it is the user's alone: for directories in places where all may write.

    Raises:
        UntrustedCacheError: somebody else has made it first, or could replace it.
        OSError: it cannot be made.
    """
    for directory in (*reversed(path.parents), path):
        if not directory.exists():
            directory.mkdir(mode=0o700, exist_ok=True)
        status = directory.lstat()
        open_to_all = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        if status.st_uid not in (os.getuid(), 0) or (open_to_all and not stat.S_ISLNK(status.st_mode)):
            raise UntrustedCacheError(directory, "could be replaced by somebody else", f"Close it, or {_OTHER_PLACES}")
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise UntrustedCacheError(path, "is not yours alone", f"Remove it, or {_OTHER_PLACES}")
    return path
