"""Saying that a compiler runs: a silent compile looks like a hang.

Plugins, through hooks. The log: one record when a compiler starts, one when it ends, one more when it takes long;
each carries its data as ``record.sgljit``. On a terminal, one line, while a build takes more than a second.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from sgljit_core import log
from sgljit_core.plugins import hooks
from sgljit_core.specs.build import BuildSpec

from . import record

_LONG_SECONDS = 10.0

# For several builds that belong together: the number of the next to begin, and how many there are.
batch: ContextVar[tuple[Iterator[int], int] | None] = ContextVar("sgljit_batch", default=None)


@dataclass
class Run:
    """A build under way: the directory that it is in, and how it ended."""

    directory: Path
    outcome: str = "compiled"


_SAID = {
    "compiled": "compiled {} in {:.2f} s",
    "private": "compiled {} in {:.2f} s, for this process alone",
    "failed": "failed to compile {} after {:.2f} s",
    "interrupted": "interrupted while compiling {} after {:.2f} s",
}


@contextmanager
def announced(build: BuildSpec, key: str, root: Path) -> Iterator[Run]:
    """Around a build. Whoever makes it sets the directory and the outcome."""
    run = Run(root)
    hooks.build_started(build)
    data = {"build": build.label, "family": build.family, "module": build.module, "target": build.target.name}
    log.log(logging.INFO, "build_started", f"compiling {build.label}", **data)
    text = f"still compiling {build.label} after {_LONG_SECONDS:.0f} s"
    still = functools.partial(log.log, logging.WARNING, "build_slow", text, **data)
    start = time.perf_counter()
    error: BaseException | None = None
    try:
        with showing(f"compiling {_position()}{build.label}"), _after(_LONG_SECONDS, still):
            yield run
    except BaseException as raised:
        error = raised
        run.outcome = "failed" if isinstance(raised, Exception) else "interrupted"
        raise
    finally:
        seconds = time.perf_counter() - start
        record.built(run.outcome, seconds)
        ended = {**data, "key": key, "directory": str(run.directory), "outcome": run.outcome, "seconds": seconds}
        log.log(logging.INFO, "build_finished", _SAID[run.outcome].format(build.label, seconds), **ended)
        hooks.build_finished(build, seconds, error, key, run.directory, run.outcome)


def _position() -> str:
    current = batch.get()
    if current is None:
        return ""
    begun, total = current
    return f"{next(begun)} of {total}: "


@contextmanager
def _after(seconds: float, function: Callable[[], object]) -> Iterator[None]:
    """Call a function in a thread, should the block run for so long. Not at all where no thread is left."""
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    with contextlib.suppress(RuntimeError):
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join(1)  # it may just have begun


@contextmanager
def showing(text: str) -> Iterator[None]:
    """A line on the terminal while the block runs, once it has run for a second. Elsewhere nothing."""
    if not _has_terminal():
        yield
        return
    shown: list[str] = []

    def show() -> None:
        shown.append(text)
        _write(text)

    try:
        with _after(1.0, show):
            yield
    finally:
        if shown:
            _write("")


def _has_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # a daemon has none, others put in what can only write, or close it
        return False


def _write(line: str) -> None:
    """Write a line over the last one. The cursor stays at its beginning, so that other output takes its place."""
    width = shutil.get_terminal_size().columns - 1
    with contextlib.suppress(AttributeError, OSError, ValueError):  # stderr was closed or replaced
        print(f"\r{line[:width]:{width}}\r", end="", file=sys.stderr, flush=True)
