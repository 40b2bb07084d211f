"""Loads, builds and survived failures of the cache in this process: logged, counted, reported to plugins.

A silent compile looks like a hang. So there is a record when a compiler starts, one when it ends, and one more when it
takes long; on a terminal a line after a second.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sgljit_core import log
from sgljit_core.machine.forks import ForkLock
from sgljit_core.plugins import hooks
from sgljit_core.specs.build import BuildSpec

from .request import Request

_lock = ForkLock()  # for all counts
_builds: Counter[str] = Counter()
_loads: list[dict[str, Any]] = []  # the arguments of `sgljit_loaded`
_news: list[tuple[str, dict[str, Any]]] = []  # not heard by plugins; a hit takes no lock, as a list grows in one step
_sums = {"misses": 0, "seconds": 0.0, "faults": 0}


class Stats(NamedTuple):
    """The counts of a process.

    Attributes:
        hits: loads from the cache, by tier: "cache", "prebuilt", "carried", "plugin", "remote".
        misses: requests that no tier could serve.
        builds: the builds by outcome: "compiled", "private" (not kept), "failed", "interrupted".
        seconds: the time that builds took, by the clock; those side by side count each.
        faults: the failures of the cache that this process survived.
        loads: by name each module and kernel that was loaded, with the tier of its last load, "made" for a new build.
    """

    hits: Mapping[str, int]
    misses: int
    builds: Mapping[str, int]
    seconds: float
    faults: int
    loads: Mapping[str, tuple[BuildSpec, str]]


def stats() -> Stats:
    """The counts of this process so far."""
    with _lock.here():
        loads = {load["build"].label: (load["build"], load["tier"]) for load in tuple(_loads)}
        hits = Counter(load["tier"] for load in tuple(_loads) if load["tier"] != "made")
        return Stats(dict(hits), int(_sums["misses"]), dict(_builds), _sums["seconds"], int(_sums["faults"]), loads)


def event(event: str, place: str, reason: str = "", size: int = 0, build: BuildSpec | None = None) -> None:
    """Tell plugins of what neither a load nor a build is: see the hook."""
    _news.append(("sgljit_event", {"event": event, "place": place, "reason": reason, "size": size, "build": build}))
    if hooks.load_plugins.cache_info().currsize:
        _report()


def missed(request: Request[Any]) -> None:
    """Something was in no tier."""
    with _lock.here():
        _sums["misses"] += 1
    event("miss", str(request.root / request.location.path), build=request.named)


def survived(name: str, about: str, text: str, **data: Any) -> None:
    """The cache failed, and the build goes on: a warning, once for each event and what it is about."""
    with _lock.here():
        _sums["faults"] += 1
    log.once(name, about, text, **data)
    event("failure", about, text)


def unwritable(root: Path, text: str, reason: str) -> None:
    """A cache does not take what is compiled."""
    survived("cache_unwritable", str(root), text, root=str(root), reason=reason)


def unusable(root: Path, error: Exception) -> None:
    """The default cache is not safe to use, or holds other files; ``error`` says why and what to do."""
    unwritable(root, f"there is no cache: what is compiled now serves this process alone. {error}", str(error))


def loaded(request: Request[Any], directory: Path, tier: str) -> None:
    """Something was loaded: from a tier, or as it was made ("made")."""
    build, key = request.build, request.location.source_key
    _loads.append(load := {"build": build, "key": key, "directory": directory, "tier": tier})
    _news.append(("sgljit_loaded", load))
    if log.LOGGER.isEnabledFor(logging.DEBUG):
        data = {"build": build.label, "family": build.family, "module": build.module, "markers": build.markers}
        text = f"loaded {build.label} from {directory} ({tier})"
        log.log(logging.DEBUG, "loaded", text, **data, key=key, directory=str(directory), tier=tier)
    if hooks.load_plugins.cache_info().currsize:
        _report()


def _report() -> None:
    """Tell plugins what they have not been told: a hit alone loads no plugin."""
    with _lock.here():
        new = _news[:]
        del _news[: len(new)]
    for hook, arguments in new:
        hooks.tell(hook, **arguments)


_LONG_SECONDS = 10.0
_SAID = {
    "compiled": "compiled {} in {:.2f} s",
    "private": "compiled {} in {:.2f} s, for this process alone",
    "failed": "failed to compile {} after {:.2f} s",
    "interrupted": "interrupted while compiling {} after {:.2f} s",
}


@dataclass
class Run:
    """A build under way: the directory that it is in, and how it ended."""

    directory: Path
    outcome: str = "compiled"


@contextlib.contextmanager
def announced(build: BuildSpec, key: str, root: Path) -> Iterator[Run]:
    """Around a build. Whoever makes it sets the directory and the outcome."""
    run = Run(root)
    hooks.tell("sgljit_build_started", build=build)
    _report()
    data = {"build": build.label, "family": build.family, "module": build.module, "target": build.target.name}
    log.log(logging.INFO, "build_started", f"compiling {build.label}", **data)
    text = f"still compiling {build.label} after {_LONG_SECONDS:.0f} s"
    still = functools.partial(log.log, logging.WARNING, "build_slow", text, **data)
    start = time.perf_counter()
    error: BaseException | None = None
    try:
        with _after(1.0, functools.partial(_say, f"compiling {build.label}")), _after(_LONG_SECONDS, still):
            yield run
    except BaseException as raised:
        error = raised
        run.outcome = "failed" if isinstance(raised, Exception) else "interrupted"
        raise
    finally:
        seconds = time.perf_counter() - start
        with _lock.here():
            _builds[run.outcome] += 1
            _sums["seconds"] += seconds
        ended = {"key": key, "outcome": run.outcome, "seconds": seconds}
        text = _SAID[run.outcome].format(build.label, seconds)
        log.log(logging.INFO, "build_finished", text, **data, **ended, directory=str(run.directory))
        hooks.tell("sgljit_build_finished", build=build, error=error, directory=run.directory, **ended)


@contextlib.contextmanager
def _after(seconds: float, function: Callable[[], object]) -> Iterator[None]:
    """Call a function in a thread once the block has run for so long; never where no thread is left."""
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


def _say(text: str) -> None:
    """Print a line, if there is a terminal: a daemon has none, others put in what can only write, or close it."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        if sys.stderr.isatty():
            print(text, file=sys.stderr, flush=True)
