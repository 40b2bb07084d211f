"""What tests of builds share: child processes, a compiler that can be held, and a look at the disk."""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from sgljit_core.cache import keys
from sgljit_core.compilers import toolchain
from sgljit_core.errors import ToolchainNotFoundError

LOAD = """
from sgljit_core import load_jit
module = load_jit("number", *markers, cpp_files=["number.cpp"], cpp_wrappers=[("number", "number")], csrc=csrc,
                  extra_cflags=flags)
print(module.number())
"""

# Warnings of a build that takes long, as each does on a busy machine.
_LATE = re.compile(r"^(?:waiting for process|still compiling) .*\n", re.MULTILINE)


_TOO_NEW = re.compile(r".*(?:unsupported (?:GNU|clang) version|/bits/.* exception specification is incompatible).*")


def compilers_for_cuda() -> toolchain.Toolchain:
    """The compilers, or a skip with the reason: there is no nvcc, or this machine is too new for it."""
    try:
        tools = toolchain.find_toolchain(cuda=True, needed_for="a test")
    except ToolchainNotFoundError as error:
        pytest.skip(str(error).splitlines()[0])
    assert tools.nvcc is not None
    refusal = _refusal(str(tools.nvcc.path), str(tools.cxx.path))
    if refusal:
        pytest.skip(refusal)
    return tools


@functools.cache
def _refusal(nvcc: str, cxx: str) -> str:
    """What nvcc prints if the host compiler or C library is too new for it; "" if it compiles, or fails otherwise."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "empty.cu").touch()
        command = [nvcc, f"-ccbin={cxx}", "-arch=sm_90a", "-cubin", "empty.cu"]
        tried = subprocess.run(command, capture_output=True, text=True, cwd=directory)
    found = _TOO_NEW.search(tried.stdout + tried.stderr)
    return found[0] if found else ""


@dataclass
class Child:
    """A process that was forked, or started, with the code that it runs."""

    process: BaseProcess
    file: Path

    @property
    def output(self) -> str:
        return self.file.read_text() if self.file.exists() else ""

    def join(self) -> str:
        """Wait for its good end; its output, without the warnings that a build takes long."""
        self.end()
        assert self.process.exitcode == 0, f"exit status {self.process.exitcode}\n{self.output}"
        return _LATE.sub("", self.output)

    def end(self) -> int | None:
        """Wait for its end, good or not; its exit status, or None where it runs after minutes."""
        self.process.join(300)
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()
        self.process.join(30)


@dataclass
class Children:
    csrc: Path
    directory: Path
    started: list[Child] = field(default_factory=list)

    def start(self, code: str = LOAD, /, env: dict[str, str] | None = None, **arguments: Any) -> Child:
        """Fork a process that imported everything and has loaded nothing."""
        import children  # not at the top: it imports torch, which the process that starts xdist's workers does not need

        context = multiprocessing.get_context("forkserver")
        file = self.directory / f"output-{len(self.started)}"
        arguments = {"csrc": str(self.csrc), "markers": (), "flags": (), **arguments}
        environment = {**os.environ, **(env or {})}
        process = context.Process(target=children.run, args=(code, environment, str(file), arguments))
        process.start()
        self.started.append(Child(process, file))
        return self.started[-1]

    def run(self, code: str = LOAD, /, env: dict[str, str] | None = None, **arguments: Any) -> str:
        return self.start(code, env, **arguments).join()

    def sgljit(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the command line, as ``python -m sgljit_core`` does, but in a process that need not import torch."""
        return self.module("sgljit_core", *arguments, **environment)

    def module(
        self, name: str, *arguments: str, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a module as ``python -m`` does, in a process that need not import torch."""
        given = {"name": name, "cwd": str(cwd or Path.cwd()), "arguments": arguments}
        return self._completed(MODULE, {"NO_COLOR": "1", **environment}, **given)

    def script(self, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run code as ``python -c`` does, in a process that need not import torch."""
        return self._completed(code, environment)

    def _completed(self, code: str, environment: dict[str, str], **given: Any) -> subprocess.CompletedProcess[str]:
        errors = self.directory / f"errors-{len(self.started)}"
        child = self.start(ERRORS + code, environment, errors=str(errors), **given)
        return subprocess.CompletedProcess(code, child.end(), child.output, errors.read_text())


ERRORS = "import os; os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT, 0o600), 2)\n"
MODULE = """
import os, runpy, sys
os.chdir(cwd)
sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
sys.argv = ["sgljit", *arguments]
runpy.run_module(name, run_name="__main__", alter_sys=True)
"""


COMPILER = """\
#!/bin/sh
case " $* " in
*" --version "*) exec "$REAL" "$@" ;;
*" -c "*) phase=compile ;;
*) phase=link ;;
esac
echo "$phase" >> "$DIRECTORY/calls"
if [ -e "$DIRECTORY/hold-$phase" ]; then
  : > "$DIRECTORY/holding-$phase"
  while [ -e "$DIRECTORY/hold-$phase" ]; do sleep 0.02; done
fi
if [ -e "$DIRECTORY/hold-after-$phase" ]; then
  "$REAL" "$@" || exit
  : > "$DIRECTORY/holding-after-$phase"
  while [ -e "$DIRECTORY/hold-after-$phase" ]; do sleep 0.02; done
  exit
fi
exec "$REAL" "$@"
"""


@dataclass
class Compiler:
    """g++ behind a script that counts its calls and can be held before and after each phase ("after-link")."""

    directory: Path

    @property
    def path(self) -> Path:
        return self.directory / "g++"

    def calls(self, phase: str = "compile") -> int:
        file = self.directory / "calls"
        return file.read_text().split().count(phase) if file.exists() else 0

    def hold(self, phase: str = "compile") -> None:
        (self.directory / f"holding-{phase}").unlink(missing_ok=True)
        (self.directory / f"hold-{phase}").touch()

    def is_held(self, phase: str = "compile") -> bool:
        return (self.directory / f"holding-{phase}").exists()

    def let_go(self, phase: str = "compile") -> None:
        (self.directory / f"hold-{phase}").unlink(missing_ok=True)


def mostly_slow(*values: Any, quick: int = 1) -> list[Any]:
    """The values of a parameter: the quick tests take the first, the slow ones the others."""
    return [*values[:quick], *(pytest.param(value, marks=pytest.mark.slow) for value in values[quick:])]


def artifacts(root: Path) -> list[Path]:
    """The directories of the artifacts below a root."""
    return sorted(path.parent for path in root.glob("[!.]*/*/*/*/*/manifest.json"))


def change_manifest(artifact: Path, **fields: Any) -> None:
    """Write other values into a manifest, with the sha256 that they have."""
    document = json.loads((artifact / "manifest.json").read_text())
    document["manifest"].update(fields)
    document["sha256"] = keys.digest(keys.canonical(document["manifest"]))
    (artifact / "manifest.json").write_text(json.dumps(document))


def leftovers(root: Path) -> list[Path]:
    """What killed builds have left below a root."""
    return sorted((root / ".staging").glob("*"))


def running_below(root: Path) -> list[str]:
    """The processes whose working directory is below ``root``: compilers."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(process.joinpath("cwd").readlink()).startswith(str(root)):
                found.append(process.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def until(condition: Callable[[], Any], seconds: float = 60, what: str = "") -> Any:
    """Wait until a condition holds; its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what or condition}"
        time.sleep(0.01)
    return value


def made(directory: Path) -> Path:
    """A new private directory."""
    directory.mkdir(mode=0o700)
    return directory


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter."""
    # At its end Python looks for garbage in all that is there: with torch this takes 0.3 s.
    command = [sys.executable, "-c", f"import atexit, gc; atexit.register(gc.freeze)\n{code}", *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)


def in_low_heap(code: str, *arguments: Path | str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a Python whose executable lies at a fixed address, as Debian's does: its heap is below 4 GiB."""
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        pytest.skip("needs a Python with a shared library, to build an executable that uses it")
    libraries, version = sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LDVERSION")
    (directory / "python.c").write_text(
        "int Py_BytesMain(int, char**);\nint main(int n, char** words) { return Py_BytesMain(n, words); }\n"
    )
    link = [f"-L{libraries}", f"-Wl,-rpath,{libraries}", f"-lpython{version}"]
    command = ["g++", "-no-pie", "-x", "c", "python.c", "-x", "none", *link, "-o", "python"]
    subprocess.run(command, cwd=directory, check=True)
    environment = {**os.environ, "PYTHONHOME": sys.base_prefix, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [str(directory / "python"), "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)
