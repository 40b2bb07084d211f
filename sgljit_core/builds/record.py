"""Loads and builds of this process, and the failures of the cache that it survived: logged and counted."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

from sgljit_core import log
from sgljit_core.machine.forks import ForkLock

from .extensions import extensions
from .request import Request

lock = ForkLock()  # for all counts; stats.py says what they mean
hits: Counter[str] = Counter()
builds: Counter[str] = Counter()
sums = {"misses": 0.0, "seconds": 0.0, "faults": 0.0}


def missed() -> None:
    """Something was in no tier."""
    with lock.here():
        sums["misses"] += 1


def built(outcome: str, seconds: float) -> None:
    """A build has ended."""
    with lock.here():
        builds[outcome] += 1
        sums["seconds"] += seconds


def survived(event: str, about: str, text: str, **data: Any) -> None:
    """The cache failed, and the build goes on: a warning, once for each event and what it is about."""
    with lock.here():
        sums["faults"] += 1
    log.once(event, about, text, **data)


def loaded(request: Request[Any], directory: Path, tier: str) -> None:
    """Something was loaded: from a tier, or as it was made ("made")."""
    build, key = request.build, request.location.source_key
    with lock.here():
        hits[tier] += tier != "made"
    if log.is_wanted(logging.DEBUG):
        data = {"build": build.label, "family": build.family, "module": build.module, "markers": build.markers}
        text = f"loaded {build.label} from {directory} ({tier})"
        log.log(logging.DEBUG, "loaded", text, **data, key=key, directory=str(directory), tier=tier)
    extensions().loaded(build, key, directory, tier)
