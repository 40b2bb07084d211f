"""The counts of a process's loads and builds. A warm start does not import this module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from . import record


@dataclass(frozen=True)
class Stats:
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
    with record.lock.here():
        sums = record.sums
        return Stats(
            hits=dict(record.hits),
            misses=int(sums["misses"]),
            builds=dict(record.builds),
            seconds=sums["seconds"],
            faults=int(sums["faults"]),
        )
