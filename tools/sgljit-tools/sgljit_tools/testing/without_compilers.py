"""What does an op do where nothing may be compiled? It must not answer all the same.

A process of its own calls each op in a fork: once as it is, and once with an empty cache and no permission to compile.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import multiprocessing
import re
import struct
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sgljit_core import Op, stats
from sgljit_core.families import loading
from sgljit_tools.errors import RecordingError
from sgljit_tools.recording.process import ask, question_of, reply

from .subject import Fault, conditions


@functools.lru_cache(maxsize=1)
def code_of(family: str) -> tuple[list[str], list[str], int]:
    """The faults in the code of a family's ops.

    Returns:
        The faults where nothing may be compiled; the libraries with statics that they share with others; and how many
        artifacts the ops load.
    """
    empty = {"SGLJIT_CACHE_DIR": "{scratch}/cache", "SGLJIT_PREBUILT_PATH": "", "SGLJIT_JIT": "error"}
    try:
        usual: list[_Answer] = ask(__name__, family)
        forbidden: list[_Answer] = ask(__name__, family, **empty)
    except RecordingError as error:
        raise Fault(str(error)) from error
    faults = []
    for before, answer in zip(usual, forbidden, strict=True):
        if before.failed and not before.error:
            faults.append(f"{answer.op}: its code does not compile, and it gives a result all the same")
        elif before.loaded and not answer.loaded and not answer.error:
            faults.append(f"{answer.op}: where its code may not be compiled, it gives a result all the same")
    shared = {text for answer in usual for text in answer.shared}
    return faults, sorted(shared), sum(answer.loaded for answer in usual)


class _Answer(NamedTuple):
    """The outcome of an op's call: artifacts that it loaded, builds that failed, and the error that it raised."""

    op: str
    loaded: int
    shared: list[str]
    failed: int
    error: str


class _Loaded(logging.Handler):
    """The artifacts that were loaded, by the log: how many, and which libraries share statics."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.count = 0
        self.shared: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        data: dict[str, Any] = getattr(record, "sgljit", {})
        if data.get("event") != "loaded":
            return
        self.count += 1
        for library in Path(data["directory"]).glob("*.so"):
            if names := unique_symbols(library.read_bytes()):
                self.shared.append(f"{data['build']}: {', '.join(names)}")


def unique_symbols(image: bytes) -> list[str]:
    """The variables of a library that all libraries of a process share by name (STB_GNU_UNIQUE).

    The C++ standard library's are left out: a process has one, and some compilers link parts of it statically.
    """
    (table,) = struct.unpack_from("<Q", image, 0x28)
    entry_size, count = struct.unpack_from("<HH", image, 0x3A)
    sections = [struct.unpack_from("<IIQQQQII", image, table + i * entry_size) for i in range(count)]
    names = []
    for _, kind, _, _, offset, size, link, _ in sections:
        if kind != _DYNSYM:
            continue
        for at in range(offset, offset + size, 24):
            name, info = struct.unpack_from("<IB", image, at)
            if info >> 4 == _GNU_UNIQUE:
                start = sections[link][4] + name
                names.append(image[start : image.index(b"\0", start)].decode())
    return [name for name in names if not _OF_STD.match(name)]


_DYNSYM, _GNU_UNIQUE = 11, 10
_OF_STD = re.compile(r"_Z(GV|T[VTIS])?Z?N?K?S[tabsiod]")  # Itanium C++ ABI, 5.1.10: std:: and what is short for it


def main(file: str) -> None:
    """Call every op of a family in a fork of this process; the answer is what each did."""
    declared = loading.load(question_of(file)).declared()
    logger = logging.getLogger("sgljit")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    reply(file, [_in_a_fork(op) for op in declared.values()])


def _in_a_fork(op: Op) -> _Answer:
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)
    child = fork.Process(target=lambda: there.send(_answer(op)))
    child.start()
    there.close()
    with contextlib.suppress(EOFError):  # it crashed, or its call ended it
        return here.recv()  # type: ignore[no-any-return]
    child.join()
    raise Fault(f"{op.family}.{op.name}: the process of its call ended with status {child.exitcode}")


def _answer(op: Op) -> _Answer:
    handler = _Loaded()
    logging.getLogger("sgljit").addHandler(handler)
    error = _call(op)
    return _Answer(op.name, handler.count, handler.shared, stats().builds.get("failed", 0), error)


def _call(op: Op) -> str:
    """Call an op with a sample; the error that it raises."""
    with conditions():
        try:
            samples = list(op.samples(torch.device("cpu"))) if op.samples is not None else []
            for sample in samples[len(samples) // 2 :][:1]:
                op.function(**sample)
        except Exception as error:  # noqa: BLE001 - it is the answer
            return f"{type(error).__name__}: {error}"
    return "" if samples else "it has no samples"
