"""How many compilers may run at once.

As many as there are cores, as the scheduler and the cgroup's CPU quota see it, and as there is memory for, as the
kernel and the cgroup's limit see it. The processes of a user on a machine share the number: each running compiler
holds the lock of one of N files. ``SGLJIT_JOBS`` sets N.

The number only spares the machine. So nobody waits for a process that is stopped, nor longer than five minutes for
the same processes to go on: the compiler then runs beside them.

Memory of a job: nvcc on a light kernel takes 0.2 GB at its peak and on one with tvm-ffi's C++ headers 0.4 GB, but
template-heavy kernels (CUTLASS, flash attention) are known for several. 2 GB is a guess between them that errs on
the side of a machine that stays alive; g++ gets half of it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sgljit_core import log, paths
from sgljit_core.config import settings
from sgljit_core.errors import UntrustedCacheError

from . import processes
from .locks import FileLock, Holder, back_off
from .trust import private_directory

GIB = 1 << 30
NVCC_MEMORY = 2 * GIB
CXX_MEMORY = 1 * GIB
_CGROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_FOREVER = float("inf")
SECONDS = 300.0  # after which holders that are still the same are no longer waited for


@contextmanager
def running(what: str, *, cuda: bool, hurried: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Wait until another compiler may run, and count as one inside the block.

    Args:
        what: what it compiles, for whoever waits.
        hurried: whether not to wait any more.
    """
    memory = NVCC_MEMORY if cuda else CXX_MEMORY
    with _queue.turn(memory, hurried):
        lock = None
        with contextlib.suppress(OSError, UntrustedCacheError):  # no place to meet: the threads of this process share
            lock = _wait(private_directory(paths.runtime_directory()), what, memory, hurried)
        try:
            yield
        finally:
            if lock is not None:
                lock.release()


def _wait(directory: Path, what: str, memory: int, hurried: Callable[[], bool]) -> FileLock | None:
    """Wait for the processes of this user to leave room for one more."""
    waits = back_off(_FOREVER)
    before: set[_Held] = set()
    since = time.monotonic()
    while True:
        held: set[_Held] = set()
        # The room is asked for anew each time: running compilers take memory. One that is given up leaves its own.
        while len(held) < capacity(memory) + len(held & _given_up):
            lock = FileLock(directory / f"job-{len(held)}.lock", what)
            if lock.try_acquire():
                return lock
            held.add((len(held), lock.holder()))
        if hurried():
            return None
        if held != before:
            before, since = held, time.monotonic()
        waited = time.monotonic() - since > SECONDS
        stuck = {one for one in held - _given_up if waited or (one[1] and processes.is_stopped(one[1].pid))}
        for _, holder in sorted(stuck, key=str):
            who = holder or "another process"
            text = f"{who} holds a compiler job and does not go on; {what} is compiled beside it"
            log.log(logging.WARNING, "job_given_up", text, build=what, holder=str(holder))
        _given_up.update(stuck)
        if not stuck:
            next(waits)


_Held = tuple[int, Holder | None]  # the number of a job, and whose it is
_given_up: set[_Held] = set()  # jobs that were waited for in vain


class _Queue:
    """The limit among the threads of one process, who wake each other: most waiting is there."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self._changed = threading.Condition()
        self._count = 0

    @contextmanager
    def turn(self, memory: int, hurried: Callable[[], bool]) -> Iterator[None]:
        changed = self._changed
        with changed:
            # Nobody wakes the threads when memory comes free or a build is hurried: so they look, now and then.
            while self._count >= capacity(memory) and not hurried():
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
        return path.read_text(errors="replace")
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
