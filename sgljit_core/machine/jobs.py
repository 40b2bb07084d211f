"""How many compilers may run at once?

As many as there are cores, as the scheduler and the cgroup's CPU quota see it, and as there is memory for, as the
kernel and the cgroup's limit see it. The processes of a user on a machine share the number: each running compiler
holds the lock of one of N slot files. ``SGLJIT_JOBS`` sets N.

Memory of a job: nvcc on a light kernel takes 0.2 GB at its peak and on one with tvm-ffi's C++ headers 0.4 GB, but
template-heavy kernels (CUTLASS, flash attention) are known for several. 2 GB is a guess between them that errs on
the side of a machine that stays alive; g++ gets half of it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sgljit_core import paths
from sgljit_core.config import settings
from sgljit_core.errors import UntrustedCacheError

from .locks import FileLock
from .trust import private_directory

__all__ = ["available_cores", "available_memory", "capacity", "slot"]

GIB = 1 << 30
NVCC_MEMORY = 2 * GIB
CXX_MEMORY = 1 * GIB
_POLL_SECONDS = 0.02
_CGROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")


@contextmanager
def slot(*, cuda: bool, cancelled: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Wait until another compiler may run, and count as one inside the block. Do not wait once it is cancelled."""
    memory = NVCC_MEMORY if cuda else CXX_MEMORY
    try:
        directory = private_directory(paths.runtime_directory())
        lock = _wait(directory, memory, cancelled)
    except (OSError, UntrustedCacheError):
        # No place to meet the other processes: the threads of this one still share.
        with _threads.running(memory, cancelled):
            yield
        return
    try:
        yield
    finally:
        if lock is not None:
            lock.release(remove=False)


def _wait(directory: Path, memory: int, cancelled: Callable[[], bool]) -> FileLock | None:
    while not cancelled():
        for index in range(capacity(memory)):  # anew each time: running compilers take memory
            lock = FileLock(directory / f"job-{index}.lock", "a job slot")
            if lock.try_acquire():
                return lock
        time.sleep(_POLL_SECONDS)
    return None


class _Threads:
    """The limit among the threads of one process."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._count = 0

    @contextmanager
    def running(self, memory: int, cancelled: Callable[[], bool]) -> Iterator[None]:
        with self._free:
            while self._count >= capacity(memory) and not cancelled():
                self._free.wait(_POLL_SECONDS)
            self._count += 1
        try:
            yield
        finally:
            with self._free:
                self._count -= 1
                self._free.notify()


_threads = _Threads()


def _after_fork() -> None:
    global _threads  # noqa: PLW0603 - the lock may have been held by a thread that is not in the child
    _threads = _Threads()


os.register_at_fork(after_in_child=_after_fork)


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
    for directory in _own_cgroups("cpu", cgroups, proc):
        words = _read(directory / "cpu.max").split()  # version 2: "quota period", "max" for none
        if len(words) == 2 and words[0] != "max":
            cores = min(cores, max(1, int(words[0]) // int(words[1])))
        quota, period = _number(directory / "cpu.cfs_quota_us"), _number(directory / "cpu.cfs_period_us")
        if quota is not None and period and quota > 0:
            cores = min(cores, max(1, quota // period))
    return cores


def available_memory(cgroups: Path = _CGROUPS, proc: Path = _PROC) -> int | None:
    """The bytes that more processes may use here: the kernel's estimate, and what its cgroups' limits leave."""
    free = _field(proc / "meminfo", "MemAvailable:")
    free = None if free is None else free * 1024
    for directory in _own_cgroups("memory", cgroups, proc):
        for limit_file, usage_file, cached in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = _number(directory / limit_file), _number(directory / usage_file)
            if limit is None or usage is None:
                continue
            # Cached file pages count as used but are given back first.
            left = max(0, limit - usage + (_field(directory / "memory.stat", cached) or 0))
            free = left if free is None else min(free, left)
    return free


def _own_cgroups(controller: str, cgroups: Path, proc: Path) -> list[Path]:
    """The directories that limit this process: its cgroup and those above it, of both versions."""
    found = []
    for line in _read(proc / "self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, place = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        mounted = cgroups / controller if controllers else cgroups
        if not controllers and (cgroups / "unified").is_dir():
            mounted = cgroups / "unified"
        directory = mounted / place.strip("/")
        found += [d for d in (directory, *directory.parents) if d == mounted or mounted in d.parents]
    return found


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.lstrip("-").isdecimal() else None


def _field(path: Path, name: str) -> int | None:
    for line in _read(path).splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return None
