"""Who does this belong to, and is that process still alive?

A process is named by its machine, its pid and the time it started, because pids are used again. The machine is the
boot and the pid namespace: in another container the same pid is another process, so nothing can be said about it.
"""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Owner:
    """One process. ``str()`` is a token without dots or slashes, fit for a file name; ``parse`` reads it."""

    machine: str
    pid: int
    started: int

    def __str__(self) -> str:
        return f"{self.machine}-{self.pid}-{self.started}"


def current() -> Owner:
    """This process. Raises OSError."""
    pid = os.getpid()
    return Owner(_machine(), pid, _started(pid))


def parse(token: str) -> Owner | None:
    """The owner that a token names; None where it is no token."""
    parts = token.split("-")
    if len(parts) != 3 or not parts[1].isdecimal() or not parts[2].isdecimal():
        return None
    return Owner(parts[0], int(parts[1]), int(parts[2]))


def is_dead(owner: Owner) -> bool:
    """Whether the process has certainly ended. Nothing is known of another machine's processes: False."""
    try:
        return owner.machine == _machine() and _started(owner.pid) != owner.started
    except OSError:
        return False


def host_name() -> str:
    """The machine's name, for people."""
    return os.uname().nodename


@functools.cache
def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/pid").readlink()
    except (FileNotFoundError, PermissionError):  # no /proc; another failure may pass
        boot, namespace = host_name(), Path()
    return hashlib.sha256(f"{boot} {namespace}".encode()).hexdigest()[:12]


def _started(pid: int) -> int:
    """When a process started, in clock ticks since the boot; 0 where there is none (a zombie counts as none)."""
    try:
        # The second field, the program's name, may hold any bytes; what follows it is fixed.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])
