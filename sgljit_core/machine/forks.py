"""What must a forked child not inherit?

A lock that another thread held at the fork is never released in the child, and a descriptor that the child keeps
open holds a file lock, or a pipe, beyond its parent's death. Both are dealt with here, at the fork itself.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Hashable

__all__ = ["KeyedLocks", "close", "open_private"]


class KeyedLocks:
    """One reentrant lock for each key: what has different keys runs side by side. All are free in a forked child."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[Hashable, threading.RLock] = {}

    def __getitem__(self, key: Hashable) -> threading.RLock:
        with self._guard:
            return self._locks.setdefault(key, threading.RLock())


_guard = threading.Lock()  # held during a fork, so that no descriptor is open and not yet known
_private: set[int] = set()


def open_private(opener: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
    """Open descriptors of which a forked child has none. Give each back with ``close``."""
    with _guard:
        descriptors = opener()
        _private.update(descriptors)
    return descriptors


def close(descriptor: int) -> bool:
    """Close a private descriptor. False where this process is a child that never had it."""
    with _guard:
        if descriptor not in _private:
            return False
        _private.discard(descriptor)
        with contextlib.suppress(OSError):
            os.close(descriptor)
    return True


def _in_child() -> None:
    _guard.release()
    for descriptor in tuple(_private):
        close(descriptor)


os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_in_child)
