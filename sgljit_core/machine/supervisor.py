"""How does a compiler end when its builder does?

A compiler driver starts programs of its own, so a signal to it alone leaves them running, and a builder that is
killed sends no signal at all. Each command therefore runs in a process group of its own under a shell that holds the
reading end of a pipe; the builder holds the only writing end. The kernel closes it when the builder dies, however it
dies, and the shell then kills the group.

``PR_SET_PDEATHSIG`` was rejected: grandchildren do not inherit it, and it fires when the thread that started the
compiler ends. A helper in Python was rejected: it takes 15 ms to start, the shell one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import forks

# The command does not get the pipe. The watch ends when the group is killed, by itself or by the builder.
_SCRIPT = 'exec 3<&0 </dev/null; { read -r l <&3; kill -KILL 0; } >/dev/null 2>&1 & "$@" 3<&- & wait $!'


@dataclass(frozen=True)
class Finished:
    """A command that has ended: its exit status (128 + n for signal n) and all that it printed."""

    status: int
    output: str


class Supervisor:
    """Runs commands, from any thread, until ``close`` ends those that still run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[int] = set()
        self._closed = False
        _live.add(self)

    def run(
        self, command: Sequence[str], *, cwd: Path, env: Mapping[str, str], started: Callable[[], object]
    ) -> Finished:
        """Run a command to its end. ``started`` is called once it runs."""
        # A forked child must not keep the writing end: then this process's death would go unnoticed.
        reading, writing = forks.open_private(lambda: os.pipe2(os.O_CLOEXEC))
        # The output goes to a file in memory: a daemon that the compiler leaves behind would keep a pipe open.
        output = _output_file()
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT, "sh", *command],
                cwd=cwd,
                env=dict(env),
                stdin=reading,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            started()
            status = self._wait(process)
            os.lseek(output, 0, os.SEEK_SET)
            with open(output, "rb", closefd=False) as file:
                return Finished(status, file.read().decode(errors="replace"))
        finally:
            forks.close(reading)
            forks.close(writing)
            os.close(output)

    def is_closed(self) -> bool:
        """Whether commands are ended, and none is to be started."""
        with self._lock:
            return self._closed

    def close(self) -> None:
        """End every command that still runs."""
        with self._lock:
            self._closed = True
            for group in self._running:
                _kill(group)

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        group = process.pid
        with self._lock:
            self._running.add(group)
            if self._closed:
                _kill(group)
        try:
            # Not reaped yet: while the leader is a zombie, no other process group can get its number.
            os.waitid(os.P_PID, group, os.WEXITED | os.WNOWAIT)
        finally:
            with self._lock:
                _kill(group)
                self._running.discard(group)
            status = process.wait()
        return status if status >= 0 else 128 - status


def _output_file() -> int:
    try:
        return os.memfd_create("sgljit-compiler-output", os.MFD_CLOEXEC)
    except OSError:  # a sandbox that has none
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


_live: weakref.WeakSet[Supervisor] = weakref.WeakSet()


def end_all() -> None:
    """End every command of this process, and those that its supervisors would still start."""
    for supervisor in tuple(_live):
        supervisor.close()
