"""How many compilers this process may run at once.

One for each core (affinity and cgroup quota), and no more than fit into free memory (kernel and cgroup limit), which is
read again before each compiler starts, as other processes take memory too. ``SGLJIT_JOBS`` sets the number.

nvcc takes 0.2 GB at its peak on a light kernel, 0.4 GB with tvm-ffi's C++ headers, and several on template-heavy ones
(CUTLASS, flash attention). 2 GB is a guess between them, by which the machine stays alive; g++ gets half of it.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from sgljit_core.config import settings

GIB = 1 << 30
NVCC_MEMORY = 2 * GIB
CXX_MEMORY = 1 * GIB
_CGROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")


class _Slots:
    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.changed = threading.Condition()
        self.taken: list[int] = []  # the threads that run a compiler


_slots = _Slots()


@contextlib.contextmanager
def running(*, cuda: bool, is_cancelled: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Wait until another compiler may run, and count as one inside the block. A cancelled build does not wait."""
    memory = NVCC_MEMORY if cuda else CXX_MEMORY
    changed, taken, here = _slots.changed, _slots.taken, threading.get_ident()
    with changed:
        # Nobody wakes the threads when memory comes free or a build is cancelled: so they look, now and then.
        # A signal's handler would wait for ever for what its own thread has taken.
        while len(taken) >= capacity(memory) and not is_cancelled() and here not in taken:
            changed.wait(0.5)
        taken.append(here)
    try:
        yield
    finally:
        with changed:
            taken.remove(here)
            changed.notify_all()


def capacity(memory: int) -> int:
    """How many compilers that take ``memory`` bytes each may run at once, at least one."""
    if (configured := settings().jobs) is not None:
        return configured
    cores, free = available_cores(), available_memory()
    return cores if free is None else max(1, min(cores, free // memory))


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
    free = _number(proc / "meminfo", "MemAvailable:")
    free = None if free is None else free * 1024
    for directory in _own_cgroups(cgroups, proc):
        limit, usage = _number(directory / "memory.max"), _number(directory / "memory.current")
        if limit is None or usage is None:
            continue
        # Cached file pages count as used but are given back first.
        left = max(0, limit - usage + (_number(directory / "memory.stat", "inactive_file") or 0))
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


def _number(path: Path, name: str = "") -> int | None:
    """The number in a file, or that on the line of a name; None where there is none."""
    found = re.search(rf"^{name}\s*(\d+)\b", _read(path), re.MULTILINE)
    return int(found[1]) if found else None
