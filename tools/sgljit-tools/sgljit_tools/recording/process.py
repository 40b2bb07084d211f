"""Calls that take a process of their own, whose environment differs and which may crash.

A crash costs one call's result. The text has the end of the output, and the call of an op that the process was in.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from sgljit_core.errors import SgljitError
from sgljit_core.machine import private
from sgljit_tools.environment import inherited_environment
from sgljit_tools.errors import RecordingError

T = TypeVar("T")

_MOST = 4000  # characters of output that are told
_PRINTED = "\nit printed: "
_SECONDS = 1800  # of a call, after which it is taken for one that never ends


class CrashedError(RuntimeError):
    """The process ended in a call. The text says how, in which call of an op, and what it printed last."""


class Worker:
    """A process for calls. It starts with the first, and again after a crash.

    Args:
        environment: variables of the process that differ from this one's; "{scratch}" in them is a directory that is
            removed behind the process. A ``PYTHONPATH`` comes before the path of this process.
    """

    def __init__(self, **environment: str) -> None:
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, call: Callable[[], T]) -> T:
        """The result of a call in the process, or the exception that it raises there.

        Args:
            call: a function of a module, or a ``functools.partial`` of one; pickle takes it, and its result.

        Raises:
            CrashedError: the process ended in it.
        """
        if self._process is None or self._path != sys.path:
            self.close()
            self._start()
        assert self._process is not None
        try:
            self._connection.send(call)
            if not self._connection.poll(_SECONDS):
                raise TimeoutError(f"no answer after {_SECONDS} s")
            result, error = self._connection.recv()
        except TimeoutError as late:
            self._process.kill()
            raise CrashedError(f"{late}: {self._end()}") from late
        except (EOFError, OSError) as ended:
            raise CrashedError(self._end()) from ended
        except BaseException:  # such as a time-out of pytest: the answer that comes yet is not that of the next call
            self._process.kill()
            self._end()
            raise
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def close(self) -> str:
        """End the process; how it ended, and what it printed."""
        return self._end() if self._process is not None else ""

    def _start(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="worker-", dir=private.process_directory())
        self._connection, theirs = Pipe()
        self._path = list(sys.path)
        changed = {name: value.replace("{scratch}", self._scratch.name) for name, value in self._environment.items()}
        # It imports what this process would, and nothing from the working directory, which may be anybody's.
        path = [changed.pop("PYTHONPATH", ""), *sys.path]
        changed["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, filter(None, path)))
        environment = inherited_environment(**changed)
        command = [sys.executable, "-c", f"from {__name__} import main; main({theirs.fileno()})"]
        with theirs, Path(self._scratch.name, "output").open("wb") as output:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            fds = (theirs.fileno(),)
            self._process = subprocess.Popen(command, cwd=self._scratch.name, env=environment, pass_fds=fds, **streams)

    def _end(self) -> str:
        """Close the connection, wait for the process, and describe its end."""
        assert self._process is not None
        self._connection.close()
        try:
            status = self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._process = None
        place = Path(self._scratch.name)
        ended = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        call = place.joinpath("call").read_text() if place.joinpath("call").exists() else ""
        printed = place.joinpath("output").read_text(errors="replace").strip()[-_MOST:]
        self._scratch.cleanup()
        told = f"the process ended with {ended}"
        told += f", in the call {call}" if call else ""
        return f"{told}{_PRINTED}{printed}\n" if printed else told


def in_a_process(call: Callable[[], T], **environment: str) -> T:
    """The result of a ``Worker``'s call in a process of its own, whose output goes to this one's standard error.

    Raises:
        SgljitError: the call raises it.
        RecordingError: the process failed, with the end of its output, or the call raised something else.
    """
    worker = Worker(**environment)
    try:
        result = worker.run(call)
    except SgljitError:
        raise
    except Exception as error:
        text = str(error) if isinstance(error, CrashedError) else f"a call raised {type(error).__name__}: {error}"
        raise RecordingError(text) from error
    finally:
        sys.stderr.write(worker.close().partition(_PRINTED)[2])
    return result


_call_file: list[int] = []  # the descriptor, in a process of a ``Worker``


def note_call(describe: Callable[[], str]) -> None:
    """Write down the call of an op that comes next, in a process of a ``Worker``."""
    for file in _call_file:
        os.ftruncate(file, 0)
        os.pwrite(file, describe().encode(), 0)


def main(descriptor: int) -> None:
    """In that process: make calls until the other side closes."""
    _call_file.append(os.open("call", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    gc.disable()  # what the first call imports stays: to look through torch's modules again and again takes 0.4 s
    with contextlib.suppress(EOFError, OSError):
        while True:
            connection.send(_answer(connection.recv()))
            if not gc.isenabled():
                gc.freeze()
                gc.enable()
    gc.freeze()  # or Python looks through them once more as it ends


def _answer(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    answer: tuple[Any, Exception | None]
    try:
        answer = call(), None
    except Exception as error:  # noqa: BLE001 - the other side raises it
        answer = None, error
    try:
        pickle.loads(pickle.dumps(answer))  # noqa: S301 - of this process
    except Exception:  # noqa: BLE001 - an exception of a family may be of no importable class
        return None, RuntimeError(f"{type(answer[1]).__name__}: {answer[1]}")
    return answer
