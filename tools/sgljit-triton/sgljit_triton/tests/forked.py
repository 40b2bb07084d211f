"""Python code run by a process that has PyTorch imported: forked from one that has, it starts in milliseconds."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import traceback
from pathlib import Path


class Server:
    """The process that forks. What must be there when a process starts, such as LD_PRELOAD, is in ``environment``."""

    def __init__(self, place: Path, **environment: str) -> None:
        self._output = place / "output", place / "errors"
        path = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve()"],
            env={**os.environ, **environment, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str, environment: dict[str, str], seconds: float = 300) -> subprocess.CompletedProcess[str]:
        """Run code as ``python -c`` would in this environment."""
        output, errors = self._output
        request = {"code": code, "environment": environment, "output": str(output), "errors": str(errors)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            self.close()
            raise subprocess.TimeoutExpired(code, seconds, output.read_text(), errors.read_text())
        status = int(self._process.stdout.readline())
        return subprocess.CompletedProcess(code, status, output.read_text(), errors.read_text())

    @property
    def is_running(self) -> bool:
        """Whether it takes code: a time-out ends it."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process that forks, and what it waits for."""
        self._process.stdin.close()
        self._process.terminate()
        self._process.wait()
        self._process.stdout.close()


def serve() -> None:
    """Fork a process for each line of the input, and print its exit status."""
    import signal

    import torch  # noqa: F401
    import tvm_ffi  # noqa: F401

    import sgljit_core  # noqa: F401

    child = 0

    def end(*_: object) -> None:
        if child:
            os.kill(child, signal.SIGKILL)
        os._exit(1)

    signal.signal(signal.SIGTERM, end)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os._exit(_run(**json.loads(line)))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        child = 0
        print(status, flush=True)


def _run(code: str, environment: dict[str, str], output: str, errors: str) -> int:
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [place for place in environment["PYTHONPATH"].split(os.pathsep) if place not in sys.path]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, file in enumerate((output, errors), 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    status = 0
    try:
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as ended:
        status = ended.code or 0
    except BaseException:  # noqa: BLE001 - whatever it is, the test sees it in the output
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status
