"""Saying that a compiler runs: a silent compile looks like a hang.

Plugins, through hooks. The log: one record when a compiler starts, one when it ends, one more when it takes long;
each carries its data as ``record.sgljit``. On a terminal, a line for every build that takes more than a second.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sgljit_core import log
from sgljit_core.machine.forks import ForkLock
from sgljit_core.model.build import BuildSpec

from . import record
from .extensions import extensions

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


_SHOW_SECONDS = 1.0
_LONG_SECONDS = 10.0


_lock = ForkLock()  # for the display
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
    extensions().build_started(build)
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
        extensions().build_finished(build, seconds, error, key, run.directory, run.outcome)


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


@contextmanager
def showing(text: str) -> Iterator[None]:
    """A line on the terminal while the block runs, once it has run for a second. Elsewhere nothing."""
    if not _has_terminal():
        yield
        return
    line = _Line(text)
    try:
        with _after(_SHOW_SECONDS, line.show):
            yield
    finally:
        line.hide()


def _has_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # a daemon has none, others put in what can only write, or close it
        return False


class _Line:
    """One line of the display, which all builds of the process share: a terminal has room for one display."""

    _display: Progress | None = None
    _lines = 0

    def __init__(self, text: str) -> None:
        self._text = text
        self._task: TaskID | None = None
        self._ended = False

    def show(self) -> None:
        with _lock.here():
            if self._ended:
                return
            if _Line._display is None:
                _Line._display = _new_display()
                _Line._display.start()
            _Line._lines += 1
            self._task = _Line._display.add_task(self._text, total=None)

    def hide(self) -> None:
        with _lock.here():
            self._ended = True
            if self._task is None or _Line._display is None:
                return
            _Line._display.remove_task(self._task)
            _Line._lines -= 1
            if _Line._lines == 0:
                _Line._display.stop()
                _Line._display = None


def _new_display() -> Progress:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
