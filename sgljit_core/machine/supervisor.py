"""How does a compiler end when its builder does?

A compiler driver starts programs of its own, so a signal to it alone leaves them running, and a builder that is
killed sends no signal at all. Each command therefore runs in a process group of its own under a shell that holds the
reading end of a pipe; the builder holds the only writing end. The kernel closes it when the builder dies, however it
dies, and the shell then kills the group.

The shell also ends a command that takes too long. Each of its processes may take as much memory as the machine had
left when it started, and at least 4 GiB: one that runs away then fails, rather than whoever the kernel picks.

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
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sgljit_core.errors import ResourceError

# The command gets neither the pipe nor the clock. Both watches end when the group is killed, by them or by the builder.
_LIMITS = 'ulimit -S -v "$0" 2>/dev/null; seconds=$1; shift; exec 3<&0 </dev/null; '
_BUILDER = "{ read -r l <&3; kill -KILL 0; } >/dev/null 2>&1 & "
_CLOCK = '{ sleep "$seconds" && kill -KILL 0; } >/dev/null 2>&1 3<&- & '
_SCRIPT = _LIMITS + _BUILDER + _CLOCK + '"$@" 3<&- & wait $!'

_NO_STATUS = (
    "This process ignores SIGCHLD, as its parent may have told it to: call signal.signal(signal.SIGCHLD, "
    "signal.SIG_DFL) before the first kernel is compiled"
)

SECONDS = 1800.0  # that a compiler may take
_KILLED = 128 + signal.SIGKILL
LEAST_MEMORY = 4 << 30


_writing: set[int] = set()  # the writing ends of the pipes; a forked child would keep commands alive with them
# A child that is forked in the middle of a start would hold that pipe, or the one by which Popen learns that the
# command runs: this process would wait for the child's end, and the child for the build.
_starting = threading.RLock()


def _close_in_child() -> None:
    _starting.release()
    while _writing:
        os.close(_writing.pop())


os.register_at_fork(before=_starting.acquire, after_in_parent=_starting.release, after_in_child=_close_in_child)


class Finished(NamedTuple):
    """A command that has ended, with its exit status (128 + n for signal n) and all that it printed.

    ``late``: it was ended because it took too long. ``memory``: what each of its processes could take, in bytes.
    """

    status: int
    output: str
    late: bool
    memory: int | None


class Supervisor:
    """Runs commands, from any thread, until ``close`` ends those that still run."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._running: set[int] = set()
        self.closed = False  # whether commands are ended, and none is to be started
        _live.add(self)

    def run(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        seconds: float,
        started: Callable[[], object] = lambda: None,
        memory: int | None = None,
    ) -> Finished:
        """Run a command to its end, which comes after so many ``seconds`` at the latest.

        Args:
            started: called once it runs.
            memory: the bytes that the machine has left for it.

        Raises:
            FileNotFoundError: somebody removed ``cwd``.
            ResourceError: it cannot be started, or its exit status is lost.
        """
        from . import threads  # a warm start runs no command

        memory = None if memory is None else max(memory, LEAST_MEMORY)
        limits = [str(memory // 1024) if memory else "unlimited", f"{seconds:g}"]
        shell = ["/bin/sh", "-c", _SCRIPT, *limits, *command]
        try:
            start = time.monotonic()
            # Not in the main thread: a signal's handler interrupts it, may build too, and would wait for a start there.
            with threads.running([lambda: self._run(shell, cwd, env, started)], 1, self.close) as (future,):
                status, output = future.result()
        except ChildProcessError as error:
            raise ResourceError(f"{command[0]} ran, but its exit status is lost", error, _NO_STATUS) from error
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not cwd.is_dir():
                raise
            raise ResourceError(f"{command[0]} cannot be run", error) from error
        late = status == _KILLED and time.monotonic() - start >= seconds
        return Finished(status, output.decode(errors="replace"), late, memory)

    def _run(
        self, command: Sequence[str], cwd: Path, env: Mapping[str, str], started: Callable[[], object]
    ) -> tuple[int, bytes]:
        # The output goes to a file in memory: a daemon that the compiler leaves behind would keep a pipe open.
        with open(_output_file(), "w+b", buffering=0) as output:
            with _starting:
                reading, writing = os.pipe2(os.O_CLOEXEC)
                _writing.add(writing)
            try:
                files: dict[str, Any] = {"stdin": reading, "stdout": output, "stderr": subprocess.STDOUT}
                with _starting:
                    process = subprocess.Popen(command, cwd=cwd, env=dict(env), start_new_session=True, **files)
                started()
                status = self._wait(process)
                output.seek(0)
                return status, output.read()
            finally:
                _writing.discard(writing)
                for descriptor in (reading, writing):
                    os.close(descriptor)

    def close(self) -> None:
        """End every command that still runs."""
        with self._lock:
            self.closed = True
            for group in self._running:
                _kill(group)

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        group = process.pid
        with self._lock:
            self._running.add(group)
            if self.closed:
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
