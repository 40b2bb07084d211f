"""Processes that have imported vLLM already: the import takes longer than most of what the tests run in them.

As a program it imports vLLM, and nothing of sgljit, and then forks for each line that it reads: the child gets the
environment of the line, and is then a process that runs a file or a text of Python. Its end is a line with its status.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any


class Forks:
    """Runs Python in forks of one process, which starts with the first."""

    def __init__(self) -> None:
        self._parent: subprocess.Popen[str] | None = None

    def run(self, arguments: Sequence[str], environment: dict[str, str]) -> tuple[int, str]:
        """The exit status of a Python process, and what it printed.

        Args:
            arguments: as those of ``python``: a file with its own, or ``-c`` and a text.
            environment: all its variables.
        """
        if self._parent is None:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self._parent = subprocess.Popen([sys.executable, __file__], text=True, **pipes)
        with tempfile.NamedTemporaryFile("r", encoding="utf-8", errors="replace") as printed:
            request = {"arguments": [*arguments], "environment": environment, "printed": printed.name}
            print(json.dumps(request), file=self._parent.stdin, flush=True)
            status = self._parent.stdout.readline()
            assert status, f"the process that forks ended with {self._parent.wait()}"
            return int(status), printed.read()

    def close(self) -> None:
        """End the process."""
        if self._parent is not None:
            self._parent.communicate()


def _next_request() -> dict[str, Any] | None:
    """In a child, what it is to do; None in the parent, after its last line."""
    for line in iter(sys.stdin.readline, ""):
        request: dict[str, Any] = json.loads(line)
        if not (child := os.fork()):
            return request
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


def _run(request: dict[str, Any]) -> None:
    for descriptor, path in enumerate((os.devnull, request["printed"], request["printed"])):
        os.dup2(os.open(path, os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_APPEND), descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["arguments"]
    if sys.argv[0] == "-c":
        exec(compile(sys.argv[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    os.environ.update(VLLM_TARGET_DEVICE="cpu", HF_HUB_OFFLINE="1")  # these are read by the import
    sys.path.pop(0)  # the folder of this file, which a test's process has only where its file is run
    import vllm.config
    import vllm.entrypoints.llm
    import vllm.utils.jit_monitor  # noqa: F401 - imported for the children

    gc.freeze()  # what the import made stays shared
    assert not any(name.startswith("sgljit") for name in sys.modules), "a child is to import the adapter"
    if request := _next_request():
        _run(request)
