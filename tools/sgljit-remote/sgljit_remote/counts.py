"""What did this process ask of its remote, and what became of it?"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from sgljit_core import log
from sgljit_core.builds import record
from sgljit_core.machine.forks import ForkLock

_lock = ForkLock()
_counts: Counter[str] = Counter()


class Stats(NamedTuple):
    """The counts of a process.

    Attributes:
        requests: reads and writes of objects, each attempt for itself.
        bytes_read, bytes_written: of whole objects.
        failures: the requests that failed, or were not answered in time.
        refusals: the objects and artifacts that were refused, those of wheels and of prebuilt directories among them,
            the remotes that must not be used, the plugins that differ from the lock, bundles, files of ``import``, and
            what the first rank sends. The last three are exceptions. Each of the others has a warning with its reason
            and place (event ``remote_refused``, of a plugin ``plugin_problem``), once.
        artifacts: those that were verified and kept. An archive brings many at once, of which the core counts the first
            one as a hit of the tier "remote", and the others as hits of "cache".
        published: those that were compiled here and written to the remote.
    """

    requests: int
    bytes_read: int
    bytes_written: int
    failures: int
    refusals: int
    artifacts: int
    published: int


def stats() -> Stats:
    """The counts of this process so far. ``sgljit_core.stats()`` has the hits by tier, and the builds."""
    with _lock.here():
        return Stats(**{name: _counts[name] for name in Stats._fields})


def count(**numbers: int) -> None:
    """Add to the counts."""
    with _lock.here():
        _counts.update(numbers)


def refused(place: str, reason: str, size: int = 0) -> None:
    """Count something that must not be used, and report it to plugins, with its size."""
    count(refusals=1)
    record.event("refusal", place, reason, size)


def refuse(url: str, name: str, reason: str, size: int = 0) -> None:
    """Say why an object is not used: of a remote, a file or a directory."""
    refused(f"{url}/{name}", reason, size)
    text = f"{url}/{name} is refused and not used: {reason}"
    log.once("remote_refused", f"{url}/{name} {reason}", text, url=url, object=name, reason=reason)
