"""Programs in processes that are forked once torch and tvm-ffi are imported, which takes a second or two."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SECONDS = 120

# The child leaves the loop and runs its program as the interpreter would: to its end, exit functions included.
SERVER = f"""
import gc, json, os, signal, sys
import torch, tvm_ffi
gc.freeze()  # at the end of each child Python would look through all that it did not make, which takes 0.4 s
answers = os.fdopen(os.dup(1), "w")
for line in sys.stdin:
    request = json.loads(line)
    if (child := os.fork()) == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)
else:
    sys.exit()
signal.alarm({SECONDS})
for number, file in enumerate((os.devnull, request["output"], request["errors"])):
    os.dup2(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), number)
os.chdir(request["cwd"])
os.environ.clear()
os.environ.update(request["environment"])
sys.argv = ["-c", *request["arguments"]]
exec(compile(request["code"], "<string>", "exec"), {{"__name__": "__main__"}})
"""


class Forks:
    """Forks of one process, one after the other."""

    def __init__(self, directory: Path, server: subprocess.Popen[str]) -> None:
        self._directory = directory
        self._server = server
        self._count = 0

    def run(self, code: str, *arguments: str, env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a program as ``python -c`` does; one that takes too long is killed."""
        self._count += 1
        output, errors = (self._directory / f"{name}-{self._count}" for name in ("output", "errors"))
        request = {"code": code, "arguments": arguments, "environment": env, "cwd": os.fspath(cwd)}
        request |= {"output": os.fspath(output), "errors": os.fspath(errors)}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        status = int(self._server.stdout.readline())
        return subprocess.CompletedProcess(code, status, output.read_text(), errors.read_text())


@contextlib.contextmanager
def forks(directory: Path) -> Iterator[Forks]:
    """A process to fork from, for as long as the block runs."""
    # torch warns where NumPy is not installed.
    command = [sys.executable, "-W", "ignore:Failed to initialize NumPy:UserWarning", "-c", SERVER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=directory, text=True, **pipes) as server:
        yield Forks(directory, server)
