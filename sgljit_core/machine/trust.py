"""Could another user of this machine have written this file, or put another one in its place?

The cache holds code that runs as the user. So every directory on the way to it, from ``/`` on, is opened by descriptor
and checked, symbolic links included:

- it belongs to the user or to root;
- nobody else can write to it, neither by its mode nor by an access control list (whose rights the mode's group bits
  bound). A directory that all may write to is passed through if it is sticky, as ``/tmp`` is: there only the owner of
  an entry can rename or remove it, and the entry is checked next.

Where all this holds, nobody else can change what the path means, now or later, and what follows may go by path.

A group that has the user's name and no other member counts as the user: systems that give each user such a group have
the umask 002. In a user namespace that has no name for root, the owner of ``/`` counts as root, except for an entry of
a directory that all may write to.

``SGLJIT_TRUST_SHARED_CACHE=1`` waives this for caches, never for ``private`` directories.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from sgljit_core.config import cache_root, can_be_guessed, settings
from sgljit_core.errors import UntrustedCacheError

# O_PATH asks for no right to read, and with O_DIRECTORY an automounted directory is mounted.
ENTER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_ENTER_PLAIN = ENTER | os.O_NOFOLLOW
_NO_DIRECTORY = (errno.ENOTDIR, errno.ELOOP)
_MOST_LINKS = 40  # as the kernel counts
_ROOT = 0
_checked: dict[tuple[str, int], tuple[int, ...]] = {}  # the roots that were checked, by path and user


@contextlib.contextmanager
def directory(root: Path, *names: str) -> Iterator[int]:
    """A descriptor of a root, or of a directory below it, while the block runs. It serves to open entries.

    The way to a root is checked at its first use, and again when another directory is in its place or its owner or mode
    changes. Directories below it are opened from its descriptor, one after the other, and each is checked.

    Args:
        root: absolute.
        names: of the directories on the way down from the root.

    Raises:
        UntrustedCacheError: another user could have written to one of them, or could replace the root.
        FileNotFoundError: one is missing.
        OSError: one cannot be opened.
    """
    descriptor, path = _opened(root), root
    try:
        for name in names:
            path = path / name
            child = enter_cache(descriptor, path)
            os.close(descriptor)
            descriptor = child
        yield descriptor
    finally:
        os.close(descriptor)


def _opened(root: Path) -> int:
    key = (os.fspath(root), os.getuid())
    known = _checked.get(key)
    if known is not None:
        descriptor = os.open(root, ENTER)
        if identity(os.fstat(descriptor)) == known:
            return descriptor
        os.close(descriptor)
    if settings().trust_shared_cache and not can_be_guessed(root):
        return os.open(root, ENTER)
    descriptor = walk(root)
    _checked[key] = identity(os.fstat(descriptor))
    return descriptor


def identity(status: os.stat_result) -> tuple[int, ...]:
    """Who a directory is, and who may write to it."""
    return status.st_dev, status.st_ino, status.st_mode, status.st_uid, status.st_gid


def walk(path: Path, *, make: bool = False, sticky: bool = False) -> int:
    """Open a directory and check it, and every directory and symbolic link on the way.

    Args:
        path: absolute.
        make: make what is missing, for the user alone, whatever the umask says.
        sticky: whether all may write to the directory itself if it is sticky.

    Returns:
        A descriptor to open its entries with.

    Raises:
        UntrustedCacheError: another user could replace it or write to it.
        FileNotFoundError: it is missing. The directories that exist were checked.
        OSError: it cannot be opened or made.
    """
    here, names, links = Path("/"), list(reversed(path.parts[1:])), 0
    descriptor = os.open("/", ENTER)
    try:
        open_to_all = check(here, os.fstat(descriptor), descriptor, sticky=True, is_last=not names)
        while names:
            name = names.pop()
            entry = here / name
            try:
                child = _enter(descriptor, name, make=make)
            except OSError as error:
                error.filename = str(entry)
                if error.errno not in _NO_DIRECTORY:
                    raise
                target = _link(descriptor, name, entry, open_to_all)
                links += 1
                if target is None or links > _MOST_LINKS:
                    raise
                names += reversed(target.parts[1:] if target.is_absolute() else target.parts)
                if target.is_absolute():
                    os.close(descriptor)
                    here, descriptor = Path("/"), os.open("/", ENTER)
                continue
            os.close(descriptor)
            here, descriptor = (entry if name != ".." else here.parent), child
            open_to_all = check(here, os.fstat(child), child, is_below_open=open_to_all, sticky=True, is_last=not names)
        if open_to_all and not sticky:
            check(here, os.fstat(descriptor), descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def enter_cache(parent: int, directory: Path) -> int:
    """Open a directory of a cache in an open one: no symbolic link, the user's or root's, closed to others.

    Args:
        parent: the descriptor of the directory that it is in.
        directory: its path, whose last name is opened.

    Raises:
        UntrustedCacheError: another user could have written to it.
        OSError: it cannot be opened, or is no directory.
    """
    try:
        descriptor = os.open(directory.name, _ENTER_PLAIN, dir_fd=parent)
        try:
            check(directory, os.fstat(descriptor), descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor
    except OSError:
        if not settings().trust_shared_cache:
            raise
    return os.open(directory.name, ENTER, dir_fd=parent)


def check_file(path: Path, status: os.stat_result) -> None:
    """Refuse a file of a cache that another user owns or can write to. Raises UntrustedCacheError."""
    try:
        check(path, status)
    except UntrustedCacheError:
        if not settings().trust_shared_cache:
            raise


def check(
    path: Path,
    status: os.stat_result,
    descriptor: int | None = None,
    *,
    is_below_open: bool = False,
    sticky: bool = False,
    is_last: bool = True,
) -> bool:
    """Refuse a file or directory that another user owns or can write to.

    Args:
        descriptor: of the same file or directory; without one, a group never counts as the user's own.
        is_below_open: whether all may write to the directory that it is in.
        sticky: whether all may write to it if it is sticky.
        is_last: whether it is what was asked for, and not a directory on the way.

    Returns:
        Whether others can write to it, as it is sticky.
    Raises UntrustedCacheError: with what is wrong and the command that rights it.
    """
    if status.st_uid not in _trusted(is_below_open):
        mine = os.getuid()
        remedy = f"Take it over (chown -R {mine} {path})" if is_last else "Let it belong to you or to root"
        raise _untrusted(path, f"belongs to user {status.st_uid}, not to you (user {mine})", remedy)
    open_to_others = is_open(status, descriptor)
    if open_to_others and not (sticky and status.st_mode & stat.S_ISVTX):
        mode = stat.S_IMODE(status.st_mode)
        close = f"chmod -R go-w {path}" if is_last else f"chmod go-w {path}, or chmod +t {path}"
        raise _untrusted(path, f"can be written by group or others (mode {mode:04o})", f"Close it ({close})")
    return open_to_others


def is_open(status: os.stat_result, descriptor: int | None = None) -> bool:
    """Whether others than its owner can write to a file or directory."""
    if status.st_mode & stat.S_IWOTH:
        return True
    if not status.st_mode & stat.S_IWGRP:
        return False
    return descriptor is None or not _is_own_group(status.st_gid) or _has_access_list(descriptor)


def _enter(parent: int, name: str, *, make: bool) -> int:
    try:
        return os.open(name, _ENTER_PLAIN, dir_fd=parent)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):  # another process was faster
        os.mkdir(name, 0o700, dir_fd=parent)
    return os.open(name, _ENTER_PLAIN, dir_fd=parent)


def _link(parent: int, name: str, path: Path, is_below_open: bool) -> Path | None:
    """The target of a symbolic link that nobody else could have made; None if it is no link."""
    try:
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISLNK(status.st_mode):
            return None
        if status.st_uid not in _trusted(is_below_open):
            reason = f"is a symbolic link of user {status.st_uid}, not of yours (user {os.getuid()})"
            raise _untrusted(path, reason, "Remove it, or name the directory that it should lead to")
        return Path(os.readlink("", dir_fd=descriptor))
    finally:
        os.close(descriptor)


def _trusted(is_below_open: bool) -> tuple[int, ...]:
    """The users whose files are as good as this user's."""
    mine = os.getuid()
    return (mine, _ROOT) if is_below_open else (mine, _ROOT, _owner_of_all())


@functools.cache
def _owner_of_all() -> int:
    """The owner of ``/``, where root has no name of its own: it owns the compilers and the interpreter, too."""
    owner = Path("/").stat().st_uid
    try:
        is_nameless = owner == int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return _ROOT
    return owner if is_nameless else _ROOT


@functools.cache
def _is_own_group(group: int) -> bool:
    """Whether a group is the user's own: it has the user's name and no other member."""
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}


def _has_access_list(descriptor: int) -> bool:
    """Whether an access control list gives rights to others than owner and group."""
    path = f"/proc/self/fd/{descriptor}"  # O_PATH descriptors have no fgetxattr
    try:
        os.getxattr(path, "system.posix_acl_access")
    except OSError as error:
        return error.errno not in (errno.ENODATA, errno.ENOTSUP)
    return True


def _untrusted(path: Path, reason: str, remedy: str) -> UntrustedCacheError:
    """The error for a directory or file of a cache, with what else helps."""
    if any(named.is_relative_to(path) or path.is_relative_to(named) for named in settings().prebuilt):
        instead = "leave it out of SGLJIT_PREBUILT_PATH"
    elif cache_root().is_relative_to(path) or path.is_relative_to(cache_root()):
        instead = "set SGLJIT_CACHE_DIR to another directory"
    else:
        instead = "name another directory"
    accept = "" if settings().trust_shared_cache else ", or accept it with SGLJIT_TRUST_SHARED_CACHE=1"
    return UntrustedCacheError(path, reason, f"{remedy}, or {instead}{accept}")
