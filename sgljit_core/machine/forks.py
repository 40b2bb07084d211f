"""Locks that are free in a forked child, and values that are made once.

A lock that another thread held at the fork would never be released in the child.
"""

from __future__ import annotations

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
        """The lock of this process. A thread that holds it while it forks must keep this object to release it."""
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
                    self.made.setdefault(key, make())  # a handler of a signal in this thread may have been faster
            self._making.pop(key, None)
        return self.made[key]


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _renew() -> None:
    for lock in _locks:
        lock.renew()


os.register_at_fork(after_in_child=_renew)
