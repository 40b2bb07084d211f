"""What does an op do where nothing may be compiled? It must not answer all the same.

A process of its own calls each op in a fork: once as it is, and once with an empty cache and no permission to compile.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import struct
import sys
from pathlib import Path
from typing import Any

import torch

from sgljit_core import Op, stats
from sgljit_core.families import loading

from .processes import answering, ask
from .subject import Fault, conditions


@functools.lru_cache(maxsize=1)
def code_of(family: str) -> tuple[list[str], list[str], int]:
    """The faults in the code of a family's ops.

    Returns:
        The faults where nothing may be compiled; the libraries with statics that they share with others; and how many
        artifacts the ops load.
    """
    usual = {answer["op"]: answer for answer in ask("without_compilers", family)}
    forbidden = ask(
        "without_compilers", family, SGLJIT_CACHE_DIR="{scratch}/cache", SGLJIT_PREBUILT_PATH="", SGLJIT_JIT="error"
    )
    faults = []
    for answer in forbidden:
        before = usual[answer["op"]]
        if before["failed"] and not before["error"]:
            faults.append(f"{answer['op']}: its code does not compile, and it gives a result all the same")
        elif before["loaded"] and not answer["loaded"] and not answer["error"]:
            faults.append(f"{answer['op']}: where its code may not be compiled, it gives a result all the same")
    shared = [text for answer in usual.values() for text in answer["shared"]]
    return faults, sorted(set(shared)), sum(answer["loaded"] for answer in usual.values())


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


def main(file: str, family: str) -> None:
    """Call every op in a fork of this process, and write what it did to a file."""
    answer = answering(file)
    declared = loading.load(family).declared()
    handler, logger = _Loaded(), logging.getLogger("sgljit")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    for op in declared.values():
        child = os.fork()
        if child == 0:
            error = _call(op)
            answer(
                op=op.name,
                loaded=handler.count,
                shared=handler.shared,
                failed=stats().builds.get("failed", 0),
                error=error,
            )
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status != 0:
            raise Fault(f"{family}.{op.name}: the process of its call ended with status {status}")


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


if __name__ == "__main__":
    main(*sys.argv[1:])
