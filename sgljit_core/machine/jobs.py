"""How many compilers may run at once.

As many as there are cores, as the scheduler and the cgroup's CPU quota see it, and as there is memory for, as the
kernel and the cgroup's limit see it. The processes of a user on a machine share the number: each running compiler
holds the lock of one of N files. ``SGLJIT_JOBS`` sets N.

Memory of a job: nvcc on a light kernel takes 0.2 GB at its peak and on one with tvm-ffi's C++ headers 0.4 GB, but
template-heavy kernels (CUTLASS, flash attention) are known for several. 2 GB is a guess between them that errs on
the side of a machine that stays alive; g++ gets half of it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sgljit_core import paths
from sgljit_core.config import settings
from sgljit_core.errors import UntrustedCacheError

from .locks import FileLock, back_off
from .trust import private_directory

GIB = 1 << 30
NVCC_MEMORY = 2 * GIB
CXX_MEMORY = 1 * GIB
_CGROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_FOREVER = float("inf")


@contextmanager
def running(*, cuda: bool, cancelled: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Wait until another compiler may run, and count as one inside the block. Do not wait once it is cancelled."""
    memory = NVCC_MEMORY if cuda else CXX_MEMORY
    with _queue.turn(memory, cancelled):
        lock = None
        with contextlib.suppress(OSError, UntrustedCacheError):  # no place to meet: the threads of this process share
            lock = _wait(private_directory(paths.runtime_directory()), memory, cancelled)
        try:
            yield
        finally:
            if lock is not None:
                lock.release()


def _wait(directory: Path, memory: int, cancelled: Callable[[], bool]) -> FileLock | None:
    """Wait for the processes of this user to leave room for one more."""
    lock = _free(directory, memory)
    waits = back_off(_FOREVER)
    while lock is None and not cancelled():
        next(waits)
        lock = _free(directory, memory)
    return lock


def _free(directory: Path, memory: int) -> FileLock | None:
    for index in range(capacity(memory)):  # anew each time: running compilers take memory
        lock = FileLock(directory / f"job-{index}.lock", "a compiler job")
        if lock.try_acquire():
            return lock
    return None


class _Queue:
    """The limit among the threads of one process, who wake each other: most waiting is there."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self._changed = threading.Condition()
        self._count = 0

    @contextmanager
    def turn(self, memory: int, cancelled: Callable[[], bool]) -> Iterator[None]:
        changed = self._changed
        with changed:
            # Nobody wakes the threads when memory comes free or a build is cancelled: so they look, now and then.
            while self._count >= capacity(memory) and not cancelled():
                changed.wait(0.5)
            self._count += 1
        try:
            yield
        finally:
            with changed:
                self._count -= 1
                changed.notify_all()


_queue = _Queue()


def capacity(memory: int) -> int:
    """How many jobs of ``memory`` bytes each may run, at least one."""
    configured = settings().jobs
    if configured is not None:
        return configured
    free = available_memory()
    by_memory = free // memory if free is not None else available_cores()
    return max(1, min(available_cores(), by_memory))


def available_cores(cgroups: Path = _CGROUPS, proc: Path = _PROC) -> int:
    """The cores that this process may use: its affinity, and the CPU quota of its cgroups."""
    cores = len(os.sched_getaffinity(0))
    for directory in _own_cgroups(cgroups, proc):
        words = _read(directory / "cpu.max").split()  # "quota period", "max" for none
        if len(words) == 2 and words[0] != "max":
            cores = min(cores, max(1, int(words[0]) // int(words[1])))
    return cores


def available_memory(cgroups: Path = _CGROUPS, proc: Path = _PROC) -> int | None:
    """The bytes that more processes may use here: the kernel's estimate, and what its cgroups' limits leave."""
    free = _field(proc / "meminfo", "MemAvailable:")
    free = None if free is None else free * 1024
    for directory in _own_cgroups(cgroups, proc):
        limit, usage = _number(directory / "memory.max"), _number(directory / "memory.current")
        if limit is None or usage is None:
            continue
        # Cached file pages count as used but are given back first.
        left = max(0, limit - usage + (_field(directory / "memory.stat", "inactive_file") or 0))
        free = left if free is None else min(free, left)
    return free


def _own_cgroups(cgroups: Path, proc: Path) -> list[Path]:
    """The directories that limit this process: its cgroup of version 2, and those above it."""
    for line in _read(proc / "self/cgroup").splitlines():
        if line.startswith("0::"):
            own = cgroups / line[3:].strip("/")
            return [d for d in (own, *own.parents) if d == cgroups or cgroups in d.parents]
    return []


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdecimal() else None


def _field(path: Path, name: str) -> int | None:
    for line in _read(path).splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return None
