"""Loads and builds of this process, and the failures of the cache that it survived: logged and counted."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sgljit_core import log
from sgljit_core.machine.forks import ForkLock
from sgljit_core.plugins import hooks

from .request import Request

_lock = ForkLock()  # for all counts
_hits: Counter[str] = Counter()
_builds: Counter[str] = Counter()
_sums = {"misses": 0, "seconds": 0.0, "faults": 0}


class Stats(NamedTuple):
    """The counts of a process.

    Attributes:
        hits: loads from the cache, by tier: "cache", "prebuilt", "carried", "plugin".
        misses: requests that no tier could serve.
        builds: the builds by outcome: "compiled", "private" (not kept), "failed", "interrupted".
        seconds: the time that builds took, by the clock; those side by side count each.
        faults: the failures of the cache that cost only the sharing.
    """

    hits: Mapping[str, int]
    misses: int
    builds: Mapping[str, int]
    seconds: float
    faults: int


def stats() -> Stats:
    """The counts of this process so far."""
    with _lock.here():
        return Stats(dict(_hits), int(_sums["misses"]), dict(_builds), _sums["seconds"], int(_sums["faults"]))


def missed() -> None:
    """Something was in no tier."""
    with _lock.here():
        _sums["misses"] += 1


def built(outcome: str, seconds: float) -> None:
    """A build has ended."""
    with _lock.here():
        _builds[outcome] += 1
        _sums["seconds"] += seconds


def survived(event: str, about: str, text: str, **data: Any) -> None:
    """The cache failed, and the build goes on: a warning, once for each event and what it is about."""
    with _lock.here():
        _sums["faults"] += 1
    log.once(event, about, text, **data)


def unusable(root: Path, error: Exception) -> None:
    """The cache that nobody chose is not safe to use, or not ours; ``error`` says why and what to do."""
    text = f"there is no cache: what is compiled now serves this process alone. {error}"
    survived("cache_unwritable", str(root), text, root=str(root), reason=str(error))


def loaded(request: Request[Any], directory: Path, tier: str) -> None:
    """Something was loaded: from a tier, or as it was made ("made")."""
    build, key = request.build, request.location.source_key
    with _lock.here():
        _hits[tier] += tier != "made"
    if log.is_wanted(logging.DEBUG):
        data = {"build": build.label, "family": build.family, "module": build.module, "markers": build.markers}
        text = f"loaded {build.label} from {directory} ({tier})"
        log.log(logging.DEBUG, "loaded", text, **data, key=key, directory=str(directory), tier=tier)
    hooks.loaded(build, key, directory, tier)
