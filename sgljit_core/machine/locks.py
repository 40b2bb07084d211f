"""Which process may go ahead? An advisory lock on a file, for saving double work and never for correctness.

``flock`` on a descriptor of our own, which the kernel releases when the process dies. The filelock package is not
used: its releases differ in what they do to the file's content and when the file is removed, and where ``flock`` is
missing it turns to a lock file that survives its owner and then blocks for ever. Here a file system that cannot lock
raises OSError, and the caller goes ahead without.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from . import forks, processes

__all__ = ["FileLock", "Holder", "collect"]


@dataclass(frozen=True)
class Holder:
    """Who holds a lock, as they wrote into the file."""

    host: str
    pid: int
    op: str
    since: float

    def __str__(self) -> str:
        started = time.strftime("%H:%M:%S", time.localtime(self.since))
        seconds = max(0.0, time.time() - self.since)
        return f"process {self.pid} on {self.host} (building {self.op} since {started}, {seconds:.0f} s)"


class FileLock:
    """One attempt to hold the lock of a file. Not reentrant; one object for each use.

    Args:
        path: the file; its directory exists.
        op: what for, written into the file for whoever waits.
    """

    def __init__(self, path: Path, op: str) -> None:
        self._path = path
        self._op = op
        self._descriptor: int | None = None
        self._pid = os.getpid()

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it.

        Raises:
            OSError: the file cannot be made or the file system cannot lock it.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        (descriptor,) = forks.open_private(lambda: (os.open(self._path, flags, 0o600),))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._is_current(descriptor):
                self._sign(descriptor)
                self._descriptor = descriptor
        except BlockingIOError:
            return False
        finally:
            if self._descriptor is None:
                forks.close(descriptor)
        return self._descriptor is not None

    def holder(self) -> Holder | None:
        """Who holds the lock; None where the file does not (yet) say."""
        try:
            return Holder(**json.loads(self._path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def release(self, *, remove: bool) -> None:
        """Give the lock back. ``remove`` takes the file away, which the holder alone may do."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None or os.getpid() != self._pid:  # a forked child does not hold what its parent holds
            return
        if remove:
            with contextlib.suppress(OSError):
                self._path.unlink()
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        forks.close(descriptor)

    def _is_current(self, descriptor: int) -> bool:
        """Whether the locked file is still the one at the path: its holder may have removed it in between."""
        try:
            return os.path.samestat(os.fstat(descriptor), self._path.lstat())
        except FileNotFoundError:
            return False

    def _sign(self, descriptor: int) -> None:
        note = {"host": processes.host_name(), "pid": os.getpid(), "op": self._op, "since": time.time()}
        with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(note).encode(), 0)


def collect(directory: Path) -> int:
    """Remove the lock files of a directory that nobody holds, and tell how many there were."""
    removed = 0
    for path in sorted(directory.glob("*.lock")):
        lock = FileLock(path, "collecting")
        with contextlib.suppress(OSError):
            if lock.try_acquire():
                lock.release(remove=True)
                removed += 1
    return removed
