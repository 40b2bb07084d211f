"""What does an op do where nothing may be compiled? It must not answer all the same.

A process of its own calls each op in a fork: once as it is, and once with an empty cache and no permission to compile.
"""

from __future__ import annotations

import functools
import itertools
import logging.handlers
import multiprocessing
import re
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sgljit_core import stats
from sgljit_core.families import loading
from sgljit_tools.environment import change
from sgljit_tools.errors import RecordingError
from sgljit_tools.recording.process import in_a_process

from .subject import Fault, conditions


@functools.lru_cache(maxsize=1)
def code_of(family: str) -> tuple[list[str], list[str], int]:
    """The faults where nothing may be compiled, the libraries that share statics, and how many artifacts ops load."""
    try:
        answers = in_a_process(functools.partial(_answers, family))
    except RecordingError as error:
        raise Fault(str(error)) from error
    faults = []
    for usual, forbidden in zip(answers[::2], answers[1::2], strict=True):
        if usual.failed and not usual.error:
            faults.append(f"{usual.op}: its code does not compile, and it gives a result all the same")
        elif usual.loaded and not forbidden.loaded and not forbidden.error:
            faults.append(f"{usual.op}: where its code may not be compiled, it gives a result all the same")
    return faults, sorted({text for one in answers for text in one.shared}), sum(one.loaded for one in answers)


class _Answer(NamedTuple):
    """The outcome of an op's call: artifacts that it loaded, builds that failed, and the error that it raised."""

    op: str
    loaded: int
    shared: list[str]
    failed: int
    error: str


def unique_symbols(library: Path) -> list[str]:
    """The variables of a library that all libraries of a process share by name (STB_GNU_UNIQUE), as ``nm`` lists them.

    Every g++ comes with an ``nm``. The C++ standard library's are left out: a process has one, and some compilers link
    parts of it statically.
    """
    if (nm := shutil.which("nm")) is None:
        return []
    command = [nm, "--dynamic", "--defined-only", str(library)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [name for name in re.findall(r"^\w+ u (\S+)$", listed, re.MULTILINE) if not _OF_STD.match(name)]


_OF_STD = re.compile(r"_Z(GV|T[VTIS])?Z?N?K?S[tabsiod]")  # Itanium C++ ABI, 5.1.10: std:: and what is short for it


def _answers(family: str) -> list[_Answer]:
    """Two answers of each op: as it is, and with an empty cache (in this process's directory) and no compiler."""
    logger = logging.getLogger("sgljit")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    forbidding = {"SGLJIT_CACHE_DIR": f"{Path.cwd()}/cache", "SGLJIT_PREBUILT_PATH": "", "SGLJIT_JIT": "error"}
    found = []
    for op, changes in itertools.product(loading.load(family).declared(), ({}, forbidding)):
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork"), functools.partial(change, **changes)) as forks:
            try:
                found.append(forks.submit(_answer, family, op).result())
            except BrokenProcessPool as error:
                raise RecordingError(f"{family}.{op}: the process of its call ended") from error
    return found


def _answer(family: str, name: str) -> _Answer:
    """Call an op with a sample."""
    op = loading.load(family).declared()[name]
    handler = logging.handlers.BufferingHandler(sys.maxsize)
    logging.getLogger("sgljit").addHandler(handler)
    text = "" if op.samples is not None else "it has no samples"
    with conditions():
        try:
            samples = list(op.samples(torch.device("cpu"))) if op.samples is not None else []
            for sample in samples[len(samples) // 2 :][:1]:
                op.function(**sample)
        except Exception as error:  # noqa: BLE001 - it is the answer
            text = f"{type(error).__name__}: {error}"
    events: list[dict[str, Any]] = [record.sgljit for record in handler.buffer if hasattr(record, "sgljit")]
    loaded = [(event["build"], Path(event["directory"])) for event in events if event["event"] == "loaded"]
    libraries = [(build, unique_symbols(file)) for build, place in loaded for file in place.glob("*.so")]
    shared = [f"{build}: {', '.join(names)}" for build, names in libraries if names]
    return _Answer(name, len(loaded), shared, stats().builds.get("failed", 0), text)
