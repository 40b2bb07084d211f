"""Saying that a compiler runs: a silent compile looks like a hang.

Plugins, through hooks. The log: one record when a compiler starts, one when it ends, one more when it takes long;
each carries its data as ``record.sgljit``. On a terminal, a line for every build that takes more than a second.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sgljit_core import log
from sgljit_core.machine.forks import ForkLock
from sgljit_core.model.build import BuildSpec

from .extensions import extensions

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


_SHOW_SECONDS = 1.0
_LONG_SECONDS = 10.0


@dataclass
class Batch:
    """Several builds that belong together: how many there are, and how many have begun."""

    total: int
    begun: int = 0


_lock = ForkLock()  # for the display, and the count of a batch
batch: ContextVar[Batch | None] = ContextVar("sgljit_batch", default=None)


@contextmanager
def announced(build: BuildSpec) -> Iterator[None]:
    """Around a compiler run."""
    extensions().build_started(build)
    data = {"build": build.label, "family": build.family, "module": build.module, "target": build.target.name}
    log.log(logging.INFO, "build_started", f"compiling {build.label}", **data)
    start = time.perf_counter()
    error: Exception | None = None
    try:
        with showing(f"compiling {_position()}{build.label}"), _reminder(build.label, data):
            yield
    except Exception as raised:
        error = raised
        raise
    finally:
        seconds = time.perf_counter() - start
        verb = "failed to compile" if error else "compiled"
        log.log(logging.INFO, "build_finished", f"{verb} {build.label} in {seconds:.2f} s", seconds=seconds, **data)
        extensions().build_finished(build, seconds, error)


def _position() -> str:
    current = batch.get()
    if current is None:
        return ""
    with _lock.here():
        current.begun += 1
        return f"{current.begun} of {current.total}: "


@contextmanager
def _reminder(label: str, data: dict[str, str]) -> Iterator[None]:
    text = f"still compiling {label} after {_LONG_SECONDS:.0f} s"
    timer = threading.Timer(_LONG_SECONDS, log.log, (logging.WARNING, "build_slow", text), data)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def showing(text: str) -> Iterator[None]:
    """A line on the terminal while the block runs, once it has run for a second. Elsewhere nothing."""
    if not sys.stderr.isatty():
        yield
        return
    line = _Line(text)
    timer = threading.Timer(_SHOW_SECONDS, line.show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        line.hide()


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
