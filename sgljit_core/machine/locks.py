"""Advisory file locks between processes, for saving double work and never for correctness.

They are record locks of POSIX (``lockf``), and lock files are never removed: architecture.md says why ("Decisions"). A
process that closes any descriptor of a file loses its lock on it. So a table says what its threads hold, and none of
them opens such a file again. A file system that cannot lock raises OSError, and the caller goes ahead without.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from . import roots

_SHORTEST, _LONGEST = 0.005, 0.5
_PROCESS = "process "  # a note begins with it
_LONGEST_NOTE = 4096


def back_off(seconds: float) -> Iterator[float]:
    """Yield the seconds since the start: at once, then after pauses that grow, for at most ``seconds`` in all."""
    start = time.monotonic()
    yield 0.0
    while (waited := time.monotonic() - start) < seconds:
        time.sleep(min(max(_SHORTEST, waited / 8), _LONGEST, seconds - waited))
        yield time.monotonic() - start


_held: dict[Path, tuple[str, int]] = {}  # the locks that threads of this process hold: a note and the thread
os.register_at_fork(after_in_child=_held.clear)


class FileLock:
    """One attempt to hold the lock of a file. One object for each use.

    Args:
        path: the file; its directory exists.
        op: what for, written into the file for whoever waits.
    """

    def __init__(self, path: Path, op: str) -> None:
        self._path = path
        self._op = op
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it. A signal's handler shares the one of the thread that it interrupts.

        Raises OSError: the file cannot be made or the file system cannot lock it.
        """
        note = f"{_PROCESS}{os.getpid()} on {os.uname().nodename} (building {self._op} since {time.strftime('%T')})"
        mine = note, threading.get_ident()
        holding = _held.setdefault(self._path, mine)
        if holding is not mine:
            return holding[1] == mine[1]
        try:
            self._descriptor = self._open_locked()
        finally:
            if self._descriptor is None:
                _held.pop(self._path, None)
        if self._descriptor is None:
            return False
        with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
            os.truncate(self._descriptor, 0)
            os.pwrite(self._descriptor, note.encode(), 0)
        return True

    def _open_locked(self) -> int | None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        roots.share(descriptor)
        try:
            os.lockf(descriptor, os.F_TLOCK, 0)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EAGAIN):
                return None
            raise
        return descriptor

    def holder(self) -> str:
        """The holder of the lock, for messages. In a shared cache the file may hold any text, or be a FIFO."""
        mine = _held.get(self._path)
        if mine is not None:
            return mine[0]
        note = ""
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                note = os.read(descriptor, _LONGEST_NOTE).decode(errors="replace")
            finally:
                os.close(descriptor)
        return note if note.startswith(_PROCESS) and note.isprintable() else "another process"

    def release(self) -> None:
        """Give the lock back."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        with contextlib.suppress(OSError):
            os.truncate(descriptor, 0)  # nobody is named in a file that nobody holds
        os.close(descriptor)
        _held.pop(self._path, None)
