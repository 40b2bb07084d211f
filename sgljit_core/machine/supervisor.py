"""How does a compiler end when its builder does?

A compiler driver starts programs of its own, so a signal to it alone leaves them running, and a builder that is
killed sends no signal at all. Each command therefore runs in a process group of its own under a shell that holds the
reading end of a pipe; the builder holds the only writing end. The kernel closes it when the builder dies, however it
dies, and the shell then kills the group.

A command ends after half an hour, which no compiler needs, or sooner where the caller says. Each of its processes may
take as much memory as the machine had left when it started, and at least 4 GiB: one that runs away then fails, rather
than whoever the kernel picks.

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

from sgljit_core.errors import ResourceError

# The command does not get the pipe. The watch ends when the group is killed, by itself or by the builder.
_LIMIT = 'ulimit -S -v "$0" 2>/dev/null; '
_SCRIPT = _LIMIT + 'exec 3<&0 </dev/null; { read -r l <&3; kill -KILL 0; } >/dev/null 2>&1 & "$@" 3<&- & wait $!'

_NO_STATUS = (
    "This process ignores SIGCHLD, as its parent may have told it to: call signal.signal(signal.SIGCHLD, "
    "signal.SIG_DFL) before the first kernel is compiled"
)

SECONDS = 1800.0  # after which a command is ended
LEAST_MEMORY = 4 << 30


_writing: set[int] = set()  # the writing ends of the pipes; a forked child would keep commands alive with them


def _close_in_child() -> None:
    while _writing:
        os.close(_writing.pop())


os.register_at_fork(after_in_child=_close_in_child)


@dataclass(frozen=True)
class Finished:
    """A command that has ended.

    Attributes:
        status: its exit status, 128 + n for signal n.
        output: all that it printed.
        late: whether it was ended because it took too long.
        memory: the bytes that each of its processes could take; None for any number.
    """

    status: int
    output: str
    late: bool
    memory: int | None


class Supervisor:
    """Runs commands, from any thread, until ``close`` ends those that still run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[int] = set()
        self._closed = False
        _live.add(self)

    def run(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        started: Callable[[], object] = lambda: None,
        memory: int | None = None,
        seconds: float | None = None,
    ) -> Finished:
        """Run a command to its end.

        Args:
            started: called once it runs.
            memory: the bytes that the machine has left for it.
            seconds: after which it is ended; by default ``SECONDS``.

        Raises:
            FileNotFoundError: somebody removed ``cwd``.
            ResourceError: it cannot be started, or its exit status is lost.
        """
        memory = None if memory is None else max(memory, LEAST_MEMORY)
        try:
            return self._run(command, cwd, env, started, memory, SECONDS if seconds is None else seconds)
        except ChildProcessError as error:
            raise ResourceError(f"{command[0]} ran, but its exit status is lost", error, _NO_STATUS) from error
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not cwd.is_dir():
                raise
            raise ResourceError(f"{command[0]} cannot be run", error) from error

    def _run(
        self,
        command: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        started: Callable[[], object],
        memory: int | None,
        seconds: float,
    ) -> Finished:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        _writing.add(writing)
        # The output goes to a file in memory: a daemon that the compiler leaves behind would keep a pipe open.
        output = _output_file()
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT, str(memory // 1024) if memory else "unlimited", *command],
                cwd=cwd,
                env=dict(env),
                stdin=reading,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            started()
            status, late = self._wait(process, seconds)
            os.lseek(output, 0, os.SEEK_SET)
            with open(output, "rb", closefd=False) as file:
                return Finished(status, file.read().decode(errors="replace"), late, memory)
        finally:
            _writing.discard(writing)
            for descriptor in (reading, writing, output):
                os.close(descriptor)

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

    def _wait(self, process: subprocess.Popen[bytes], seconds: float) -> tuple[int, bool]:
        """Wait for a command's end: its status, and whether it was ended because it took too long."""
        group = process.pid
        late = threading.Event()

        def end() -> None:
            late.set()
            with self._lock:
                if group in self._running:
                    _kill(group)

        limit = threading.Timer(seconds, end)
        limit.daemon = True
        with self._lock:
            self._running.add(group)
            if self._closed:
                _kill(group)
        try:
            with contextlib.suppress(RuntimeError):  # no thread is left: then there is no limit
                limit.start()
            # Not reaped yet: while the leader is a zombie, no other process group can get its number.
            os.waitid(os.P_PID, group, os.WEXITED | os.WNOWAIT)
        finally:
            limit.cancel()
            with self._lock:
                _kill(group)
                self._running.discard(group)
            status = process.wait()
        return status if status >= 0 else 128 - status, late.is_set()


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
