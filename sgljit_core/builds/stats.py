"""What this process has loaded and compiled so far, as counts. A warm start imports none of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from . import record


@dataclass(frozen=True)
class Stats:
    """What a process has done so far.

    Attributes:
        hits: what was loaded from the cache, by tier: "cache", "prebuilt", "carried", "plugin".
        misses: what was in no tier.
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
    """What this process has loaded and compiled so far."""
    with record.lock.here():
        return Stats(
            dict(record.hits),
            int(record.sums["misses"]),
            dict(record.builds),
            record.sums["seconds"],
            int(record.sums["faults"]),
        )
