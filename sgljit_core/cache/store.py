"""Putting artifacts into a root, and taking away what is broken or left behind.

An artifact is a directory ``<root>/<target>/<family>/<module>/<source key>/<toolchain key>`` with ``manifest.json``
and the payload it names. It appears by one rename and is never changed, so readers take no lock.

Beside the targets a writable root holds hidden directories: builds in progress (each named after its owner), locks,
remembered answers (``machine.answers``). Nobody else can write to any of them: ``machine.roots`` sees to that each
time. So paths below a root mean the same until the next step.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from sgljit_core import log
from sgljit_core.errors import UntrustedCacheError
from sgljit_core.machine import answers, processes, roots

from .keys import Location
from .lookup import read
from .manifest import FILE, Manifest, ManifestError

STAGING = ".staging"
LOCKS = ".locks"
FAILED = "failed"  # a file that keeps the directory of a build for its author to look at
_KEPT_FAILED = 16
_KEPT_ANSWERS = 1024
_KEPT_SECONDS = 7 * 24 * 3600.0
_FOREIGN_SECONDS = 24 * 3600.0  # after that long, a build on another machine is taken to be over
_AHEAD_SECONDS = 24 * 3600.0  # a time that lies further ahead was taken from a clock that was wrong
# Clean-up removes only names of these forms, in a directory that is a cache: see ``roots``.
# The name of a module may have dots in it.
_STAGED = re.compile(r"[\w.+-]+\.(?P<owner>\w+-\d+-\d+)\.[0-9a-f]{8}")


def lock_path(root: Path, location: Location) -> Path:
    """The file whose lock says that a process of this user builds an artifact. Makes its directory.

    Artifacts share 4096 files, so that none is ever removed. Two that meet in one wait for each other once in a while.
    Raises OSError: the root cannot be written.
    """
    return roots.make(root, LOCKS) / f"{location.source_key[:3]}.lock"


def staging_directory(root: Path, module: str) -> Path:
    """A new directory to build in, on the file system of the cache. Its name says whose it is.

    It is the user's alone, in a shared cache too: what is compiled there is loaded by this process. Raises OSError: the
    root cannot be written.
    """
    directory = roots.make(root, STAGING) / f"{module}.{processes.current()}.{os.urandom(4).hex()}"
    directory.mkdir(mode=0o700)
    return directory


def discard(path: Path) -> None:
    """Remove a directory or a file as far as that is possible."""
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):  # it was a file
        path.unlink()


def publish(staging: Path, root: Path, location: Location, manifest: Manifest, payload: bytes) -> Path:
    """Move a build into its location under its root; its directory. The first of several that publish the same wins.

    Raises OSError: the root cannot be written; nothing is visible then.
    """
    package = staging / "publish"
    package.mkdir(mode=0o700)
    roots.share(package)
    write(package / manifest.payload, [payload])
    write(package / FILE, [manifest.dump()])
    _sync(package)
    return settle(package, root, location.path / manifest.entry_name())


def settle(package: Path, root: Path, place: Path) -> Path:
    """Rename a complete directory to its place below a root; a whole artifact that is there already stays.

    One that is damaged is removed.
    """
    destination = root / place
    for _ in range(3):  # prune may remove the emptied parent in between; another may publish in between
        roots.make(root, *place.parent.parts)
        try:
            package.rename(destination)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            if _is_whole(destination, root):
                break
            remove(destination, root)
            continue
        _sync(destination.parent)
        break
    return destination


def _is_whole(directory: Path, root: Path) -> bool:
    try:
        return read(directory, root) is not None
    except (ManifestError, UntrustedCacheError):
        return False


def leftovers(root: Path) -> list[Path]:
    """The remains of dead processes in a writable root, and the things kept beside artifacts that are old.

    An answer that is removed is found out again, in less than a tenth of a second.
    """
    kept: list[Path] = []
    abandoned: list[Path] = []
    for directory in _entries(root, STAGING, _STAGED):
        is_dead = processes.is_dead(directory.name.split(".")[-2])
        if (directory / FAILED).exists():
            kept.append(directory)
        elif is_dead or (is_dead is None and _age(directory) > _FOREIGN_SECONDS):
            abandoned.append(directory)
    return abandoned + _old(kept, _KEPT_FAILED) + _old(_entries(root, answers.DIRECTORY, answers.NAME), _KEPT_ANSWERS)


def collect(root: Path) -> list[Path]:
    """Remove the leftovers of a root, and say so in the log. Raises as ``roots.check_is_cache`` does."""
    roots.check_is_cache(root)
    removed = leftovers(root)
    for path in removed:
        discard(path)
    if removed:
        listed = ", ".join(str(path.relative_to(root)) for path in removed)
        log.log(logging.INFO, "collected", f"removed from {root}: {listed}", root=str(root), paths=[*map(str, removed)])
    return removed


def _old(paths: Sequence[Path], count: int) -> list[Path]:
    """All but the newest ones, as many as ``count``, and those that are kept for too long."""
    by_age = sorted(paths, key=_age)
    return [path for number, path in enumerate(by_age) if number >= count or _age(path) > _KEPT_SECONDS]


def _age(path: Path) -> float:
    with contextlib.suppress(OSError):
        seconds = time.time() - path.stat().st_mtime
        return seconds if seconds > -_AHEAD_SECONDS else float("inf")
    return 0.0


def _entries(root: Path, name: str, form: re.Pattern[str]) -> list[Path]:
    """The entries of a directory of a root whose names have a form of ours."""
    with contextlib.suppress(FileNotFoundError), roots.directory(root, name):
        return sorted(path for path in (root / name).iterdir() if form.fullmatch(path.name))
    return []


def write(path: Path, content: Iterable[bytes]) -> None:
    """Write a new file of an artifact, down to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        roots.share(descriptor)
        file.writelines(content)
        file.flush()
        os.fsync(descriptor)


def _sync(directory: Path) -> None:
    with contextlib.suppress(OSError):  # some file systems do not know it for directories
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove(path: Path, root: Path) -> None:
    """Take an artifact out of sight at once, then remove it and the directories that it leaves empty."""
    trash = staging_directory(root, "removed")
    try:  # nobody else can write to its parent, so that it is removed and nothing that they put there
        with contextlib.suppress(FileNotFoundError), roots.directory(root, *path.parent.relative_to(root).parts):
            path.rename(trash / path.name)
    finally:
        discard(trash)
    for parent in path.parents:
        if parent == root:
            break
        with contextlib.suppress(OSError):
            parent.rmdir()
