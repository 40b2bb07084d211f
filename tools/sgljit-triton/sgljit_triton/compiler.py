"""How does a kernel become machine code? Triton compiles it, in a process of its own.

The process sees none of the user's variables, so that no ``TRITON_*`` changes what is compiled under a key, and none
of the hooks and knobs that somebody set in this one. It shares nothing with Triton's own cache, it may be ended, and
several run side by side. It takes 0.4 s to start; compiling here was rejected, as Triton's settings are global.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sgljit_core.errors import CompileError, ToolchainNotFoundError
from sgljit_core.machine import answers, jobs, supervisor

REMEDY = 'Install the release that PyTorch brings: pip install "sgljit-triton[compiler]".'
_VERSION = re.compile(r"""^__version__\s*=\s*["']([^"']+)["']""", re.MULTILINE)
_PTXAS, _PTXAS_BLACKWELL = "backends/nvidia/bin/ptxas", "backends/nvidia/bin/ptxas-blackwell"
_PROGRAMS = ("_C/libtriton.so", _PTXAS, _PTXAS_BLACKWELL)
_SECONDS = 60.0  # for ptxas to say what it is
_RELEASE = re.compile(r"release (\d+\.\d+)")


class Triton(NamedTuple):
    """An installed Triton: its directory, and its version with the sizes of its programs.

    A build of Triton's main branch keeps the version of the release before: so the sizes stand for it.
    """

    directory: Path
    version: str


def find(needed_for: str) -> Triton:
    """The Triton of this environment; it is not imported. Raises ToolchainNotFoundError."""
    spec = importlib.util.find_spec("triton")
    directory = Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None
    version = None
    if directory is not None:
        with contextlib.suppress(OSError):
            version = _VERSION.search((directory / "__init__.py").read_text(encoding="utf-8"))
    if directory is None or version is None or not (directory / _PROGRAMS[0]).is_file():
        raise ToolchainNotFoundError(
            "Triton", needed_for=needed_for, searched=[f"the packages of {sys.executable}"], remedy=REMEDY
        )
    sizes = [str((directory / file).stat().st_size) for file in _PROGRAMS if (directory / file).is_file()]
    return Triton(directory, f"{version[1]} ({', '.join(sizes)} bytes)")


def ptxas_release(triton: Triton, capability: int, needed_for: str) -> str:
    """The CUDA of the ptxas with which Triton assembles for a capability such as 90: "12.8". It may have two.

    Asked once for each state of the program, and remembered. Raises ToolchainNotFoundError.
    """
    program = triton.directory / (_PTXAS_BLACKWELL if capability >= 100 else _PTXAS)
    try:
        state = program.stat()
        question = ("ptxas", str(program), str(state.st_size), str(state.st_mtime_ns))
        text = answers.recall(question)
        if text is None:
            ask, command = supervisor.Supervisor(), [str(program), "--version"]
            text = ask.run(command, cwd=Path("/"), env={"LC_ALL": "C"}, seconds=_SECONDS).output
            if _RELEASE.search(text):
                answers.remember(question, text)
        if (found := _RELEASE.search(text)) is None:
            raise ValueError(f"its version cannot be read: {text!r}")
    except (OSError, ValueError) as error:
        raise ToolchainNotFoundError(
            f"Triton's {program.name}", needed_for=needed_for, searched=[f"{program}: {error}"], remedy=REMEDY
        ) from error
    return found[1]


class Made(NamedTuple):
    """The result of a job: the machine code, Triton's facts about it (see ``worker``), and the command."""

    image: bytes
    facts: Mapping[str, Any]
    command: str


def compile_kernel(label: str, job: Mapping[str, Any], directory: Path) -> Made:
    """Have a job done in a directory, which holds input and output where this raises CompileError."""
    here = Path(__file__).resolve().parent
    for name in ("worker.py", "sources.py"):
        shutil.copy(here / name, directory / name)
    file = directory / "job.json"
    file.write_text(json.dumps({**job, "paths": [str(find(label).directory.parent)]}, indent=1), encoding="utf-8")
    command = [sys.executable, "-I", "-B", "worker.py", file.name]
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "TMPDIR": str(directory),
        "HOME": str(directory),
        "LC_ALL": "C.UTF-8",
        "TRITON_CACHE_DIR": str(directory / "triton"),
        "TRITON_ALWAYS_COMPILE": "1",
    }
    run = supervisor.Supervisor()
    with contextlib.closing(run), jobs.running(cuda=False, is_cancelled=lambda: run.closed):
        done = run.run(
            command, cwd=directory, env=environment, seconds=supervisor.SECONDS, memory=jobs.available_memory()
        )
    text = f"{shlex.join(command)}  # {job['kernel']} of {job['family']}/{job['file']}"
    if done.status != 0:
        log = done.output.strip() or f"no output; exit status {done.status}"
        lines = log.splitlines()
        first = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[-1])
        if done.late:
            first = f"Triton did not end within {supervisor.SECONDS / 60:g} minutes and was ended"
        elif done.status == 128 + 9:
            first = "Triton was killed, most likely for lack of memory; SGLJIT_JOBS=1 runs one compiler at a time"
        raise CompileError(build=label, first_error=first, command=text, log=log, build_directory=directory)
    facts = json.loads((directory / "facts.json").read_text(encoding="utf-8"))
    return Made((directory / "image").read_bytes(), facts, text)
