"""Locks and descriptors that a forked child does not inherit, and builds that interrupt others.

A lock that another thread held at the fork is never released in the child, and a descriptor that the child keeps
open holds a file lock, or a pipe, beyond its parent's death. Both are dealt with here, at the fork itself.

The start of a process waits until a pipe of its own is closed, which a child would keep open: so a fork waits for the
compilers that start.

A signal's handler, or a plugin's hook, may ask for code while its own thread builds. It must not wait for what it
interrupts, nor for a thread that waits for that: so it takes a lock only where that is free.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
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
            lock = self._making.setdefault(key, ForkLock()).here()
            held = lock.acquire(blocking=not is_building())
            try:
                if key not in self.made:
                    self.made.setdefault(key, make())  # a handler in this thread may have been faster
            finally:
                if held:
                    lock.release()
            self._making.pop(key, None)
        return self.made[key]


_thread = threading.local()


@contextmanager
def building() -> Iterator[None]:
    """Around a build."""
    depth = _depth()
    _thread.depth = depth + 1
    try:
        yield
    finally:
        _thread.depth = depth


def is_building() -> bool:
    """Whether this thread is in the midst of a build."""
    return _depth() > 0


def is_interrupting() -> bool:
    """Whether the build of this thread interrupts another of the same thread."""
    return _depth() > 1


def _depth() -> int:
    depth: int = getattr(_thread, "depth", 0)
    return depth


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()
# Held during a fork, so that no descriptor is open and not yet known, and no process half started.
_guard = ForkLock()
_private: set[int] = set()


def starting() -> threading.RLock:
    """A lock to hold while a process starts."""
    return _guard.here()


def open_private(opener: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
    """Open descriptors that a forked child does not have. Give each back with ``close``."""
    with _guard.here():
        descriptors = opener()
        _private.update(descriptors)
    return descriptors


def close(descriptor: int) -> None:
    """Close a private descriptor, unless this process is a child that never had it."""
    with _guard.here():
        if descriptor in _private:
            _private.discard(descriptor)
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _before() -> None:
    _guard.here().acquire()


def _in_parent() -> None:
    with contextlib.suppress(RuntimeError):  # control-C ended the wait for it, and the fork went on
        _guard.here().release()


def _in_child() -> None:
    for lock in _locks:
        lock.renew()
    for descriptor in tuple(_private):
        close(descriptor)


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
