"""Advisory file locks between processes, for saving double work and never for correctness.

``flock`` on a descriptor of our own, which the kernel releases when the process dies. The filelock package is not
used: its releases differ in what they do to the file's content and when the file is removed, and where ``flock`` is
missing it turns to a lock file that survives its owner and then blocks for ever. Here a file system that cannot lock
raises OSError, and the caller goes ahead without.

Lock files stay. A file that its holder removes must be compared with the path after each attempt, and left ones must
be collected; a fixed set of files needs neither.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import forks, processes, trust

_SHORTEST, _LONGEST = 0.005, 0.5


def back_off(seconds: float) -> Iterator[float]:
    """Sleep a little longer each time, for at most ``seconds`` in all; yields the seconds since the first sleep.

    Nobody is woken when another process gives a lock back, so a waiter looks again. From 5 ms it doubles to 0.5 s.
    """
    start = time.monotonic()
    pause = _SHORTEST
    while (left := start + seconds - time.monotonic()) > 0:
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST)
        yield time.monotonic() - start


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
        trust.share(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException as error:
            forks.close(descriptor)
            if isinstance(error, BlockingIOError):
                return False
            raise
        self._descriptor = descriptor
        self._sign(descriptor)
        return True

    def holder(self) -> Holder | None:
        """Who holds the lock; None where the file does not (yet) say."""
        try:
            return Holder(**json.loads(self._path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def release(self) -> None:
        """Give the lock back."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None or os.getpid() != self._pid:  # a forked child does not hold what its parent holds
            return
        with contextlib.suppress(OSError):
            os.truncate(descriptor, 0)  # nobody is named in a file that nobody holds
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        forks.close(descriptor)

    def _sign(self, descriptor: int) -> None:
        note = {"host": processes.host_name(), "pid": os.getpid(), "op": self._op, "since": time.time()}
        with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(note).encode(), 0)
