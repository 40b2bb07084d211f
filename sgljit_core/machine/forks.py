"""Locks and descriptors that a forked child does not inherit.

A lock that another thread held at the fork is never released in the child, and a descriptor that the child keeps
open holds a file lock, or a pipe, beyond its parent's death. Both are dealt with here, at the fork itself.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ForkLock:
    """A reentrant lock that is free in a forked child: ``with lock.here(): ...``."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def here(self) -> threading.RLock:
        """The lock of this process. Who holds one at a fork releases that one, in the child too."""
        return self._lock

    def renew(self) -> None:
        """Forget who held it: for a child whose other threads are gone."""
        self._lock = threading.RLock()


class OncePerKey(Generic[K, V]):
    """Values that are made once for each key, by whichever thread asks first. Other keys are made side by side.

    An exception is not kept: the next thread tries again.
    """

    def __init__(self) -> None:
        self.made: dict[K, V] = {}
        self._making: dict[K, ForkLock] = {}

    def get(self, key: K, make: Callable[[], V]) -> V:
        if key not in self.made:
            with self._making.setdefault(key, ForkLock()).here():
                if key not in self.made:
                    self.made[key] = make()
            self._making.pop(key, None)
        return self.made[key]


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()
_guard = threading.Lock()  # held during a fork, so that no descriptor is open and not yet known
_private: set[int] = set()


def open_private(opener: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
    """Open descriptors that a forked child does not have. Give each back with ``close``."""
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
    for lock in _locks:
        lock.renew()


os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_in_child)
