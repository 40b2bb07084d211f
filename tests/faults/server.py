"""Runs scenarios, each in a forked child, in which one system call may fail. Started with preload.c preloaded.

A request is a line of JSON: a scenario, the directory that it works in, and the fault. The answer is another: the
outcome ("right", "plain" for an error of ours, "wrong"), a text, and whether the fault was met.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

# All that a scenario imports, so that a child starts at once and no import is what fails.
import cuda.pathfinder
import packaging.requirements
import torch
import tvm_ffi
import zipp

import sgljit_norm.ops
import sgljit_tools.cache.admin
from sgljit_core import load_jit, log, ops, override_cuda_arch, paths
from sgljit_core.compilers import nvrtc
from sgljit_core.errors import SgljitError
from sgljit_core.jit import kernels
from sgljit_core.plugins import discovery

IMPORTED = (cuda.pathfinder, packaging.requirements, sgljit_norm.ops, tvm_ffi, zipp)
SECONDS = 120
faults: Any = ctypes.CDLL(os.environ["LD_PRELOAD"])


def load(place: Path) -> None:
    module = load_jit("number", cpp_files=["number.cpp"], cpp_wrappers=[("number", "number")], csrc=place / "csrc")
    expect(module.number(), 1)


def family(place: Path) -> None:
    x, w = torch.full((1, 8), 2.0), torch.ones(8)
    expect(ops["norm"].rmsnorm(x, w), None)
    expect(bool(torch.allclose(x, torch.ones_like(x), atol=1e-3)), True)


def variant(place: Path) -> None:
    with override_cuda_arch(9, 0):
        sources = kernels.Sources("filling", place / "csrc", paths.cache_root())
        expect(kernels.build_kernel(sources, "fill.cuh", "fill").image[:4], b"\x7fELF")


def take_in(place: Path) -> None:
    expect(sgljit_tools.cache.import_archive(place / "golden.zip"), count(place))


def give_out(place: Path) -> None:
    written = sgljit_tools.cache.export_archive(place / "tmp" / "out.zip")
    if not log.was_said("artifact_damaged"):  # a warning names what is left out
        expect(written, count(place))


def prune(place: Path) -> None:
    gone = {entry.directory.parents[1].name for entry in sgljit_tools.cache.prune().artifacts}
    expect(gone - {"broken", "number"}, set())


def verify(place: Path) -> None:
    problems = [entry.problem for entry in sgljit_tools.cache.verify()]
    expect([text for text in problems if "cannot be" not in text and "may not read" not in text], [])


def count(place: Path) -> int:
    return int((place / "count").read_text())


def collect(place: Path) -> None:
    """Check the cache after the faults: no damaged artifact, and nothing left by a dead process."""
    expect([entry.problem for entry in sgljit_tools.cache.verify()], [])
    sgljit_tools.cache.prune()
    for root in (place / "cache", place / "tmp" / f"sgljit-{os.getuid()}"):
        expect([path.name for path in (root / ".staging").glob("*") if not (path / "failed").exists()], [])


SCENARIOS: dict[str, Callable[[Path], None]] = {
    function.__name__: function for function in (load, family, variant, take_in, give_out, prune, verify, collect)
}


class WrongError(Exception):
    """A result that is not the right one."""


def expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise WrongError(f"{found!r}, not {wanted!r}")


def run(request: dict[str, Any]) -> dict[str, Any]:
    place = Path(request["place"])
    os.environ.update(request["environment"])
    tempfile.tempdir = None
    for index, directory in enumerate((place / "cache", place / "tmp", place / "run", "/memfd:sgljit")):
        faults.faults_below(index, os.fsencode(directory))
    if request["kind"]:
        faults.faults_arm(request["kind"].encode(), request["n"], request["errno"])
    outcome, text = "right", ""
    try:
        for name in request["scenarios"]:
            SCENARIOS[name](place)
    except SgljitError as error:
        outcome, text = "plain", f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001 - the test reads it
        outcome, text = "wrong", traceback.format_exc()
    fired = bool(faults.faults_fired())
    faults.faults_arm(b"", -1, 0)
    return {"outcome": outcome, "text": text, "fired": fired}


def serve() -> None:
    discovery.installed()
    nvrtc._library(json.loads(nvrtc._search() or "")["library"])
    answers = os.dup(1)
    os.dup2(2, 1)
    for line in sys.stdin:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            signal.alarm(SECONDS)
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(os.open(json.loads(line)["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
            answer = run(json.loads(line))
            with contextlib.suppress(Exception):
                atexit._run_exitfuncs()
            os.write(writing, json.dumps(answer).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            answer = file.read()
        _, status = os.waitpid(pid, 0)
        if status != 0 or not answer:
            answer = json.dumps({"outcome": "wrong", "text": f"wait status {status}", "fired": True}).encode()
        os.write(answers, answer + b"\n")


if __name__ == "__main__":
    serve()
