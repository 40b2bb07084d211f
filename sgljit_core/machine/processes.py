"""Who does this belong to, and is that process still alive?

A process is named by its machine, its pid and the time it started, because pids are used again. The machine is the
boot and the pid namespace: in another container the same pid is another process, so nothing can be said about it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from pathlib import Path

_NAME = re.compile(r"(\w+)-(\d+)-(\d+)")


def current() -> str:
    """The name of this process, without dots or slashes, fit for a file name. Raises OSError."""
    return f"{_machine()}-{os.getpid()}-{_started(os.getpid())}"


def is_dead(name: str) -> bool | None:
    """Whether a process has ended; None where that is unknown: it is of another machine, or ``name`` is not a name."""
    parts = _NAME.fullmatch(name)
    try:
        return None if parts is None or parts[1] != _machine() else _started(int(parts[2])) != int(parts[3])
    except OSError:
        return None


@functools.cache
def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/pid").readlink()
    except (FileNotFoundError, PermissionError):  # no /proc; another failure may pass
        boot, namespace = os.uname().nodename, Path()
    return hashlib.sha256(f"{boot} {namespace}".encode()).hexdigest()[:12]


def _started(pid: int) -> int:
    """When a process started, in clock ticks since the boot; 0 where there is none (a zombie counts as none)."""
    try:
        # The second field, the program's name, may hold any bytes; what follows it is fixed.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])
