"""Which of several machines compiles what none has? The first that writes a lease; the others wait until it publishes.

A lease only saves work. It ends when its text has not changed for some seconds by the clock of whoever waits, so that a
machine that died, or whose clock is wrong, holds nobody up for longer. A process that has waited so long in vain waits
for no other artifact either: many leases of one dead machine cost it one wait. A store that replaces what is there
gives everybody the lease: each compiles then, and the first to publish wins.
"""

from __future__ import annotations

import logging
import secrets
import time
from typing import TYPE_CHECKING, TypeVar

from sgljit_core import log
from sgljit_core.machine.forks import ForkLock

if TYPE_CHECKING:
    from collections.abc import Callable

    from .remote import Remote

T = TypeVar("T")

SECONDS = 30.0  # longer than most kernels take to compile
MOST_SECONDS = 300.0  # of all waits, also where leases change again and again
RELEASED = b"released"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
_LARGEST = 64


def lease_name(name: str) -> str:
    """The name of the lease of an object."""
    return f"{name.removesuffix('.zip').removesuffix('.bin')}.lease"


class Patience:
    """How long a process still waits: in vain for leases that do not change, and in all."""

    def __init__(self) -> None:
        self.unchanged, self.most = SECONDS, MOST_SECONDS
        self._lock = ForkLock()

    def has(self, start: float, since: float) -> bool:
        """Whether to go on with a wait that has begun at a time, for a lease that has not changed since another."""
        now = time.monotonic()
        return now - since < self.unchanged and now - start < self.most

    def spend(self, start: float, since: float) -> None:
        """Count a wait, which was in vain since a time."""
        now = time.monotonic()
        with self._lock.here():
            self.unchanged -= now - since
            self.most -= now - start


def taken_or_found(remote: Remote, name: str, look: Callable[[], T | None], patience: Patience) -> T | None:
    """Take the lease of an object, or wait until another machine has published it.

    Args:
        look: looks for the object; what was found, or None.
        patience: of this process.

    Returns:
        The answer of ``look``; None where this machine is to compile.

    Raises:
        RemoteUnavailableError, RefusedObjectError: as ``Remote.get``.
    """
    lease, token = lease_name(name), secrets.token_hex(16).encode()
    if remote.put(lease, token):
        return None
    log.log(logging.INFO, "remote_waiting", f"another machine compiles {name}: this one waits for it", object=name)
    start = since = time.monotonic()
    seen, pause = remote.get(lease, _LARGEST), _FIRST_PAUSE
    if seen == token:  # it was written, and the answer was lost
        return None
    while seen not in (None, RELEASED) and patience.has(start, since):
        time.sleep(pause)
        pause = min(1.5 * pause, _LONGEST_PAUSE)
        if (found := look()) is not None:
            patience.spend(start, time.monotonic())
            return found
        if (now := remote.get(lease, _LARGEST)) != seen:
            seen, since = now, time.monotonic()
    if seen not in (None, RELEASED):
        patience.spend(start, since)
    elif (found := look()) is not None:  # it was published after the last look, and then released
        return found
    remote.put(lease, token, replace=True)
    return None


def release(remote: Remote, name: str) -> None:
    """Let the others no longer wait, as nothing will be published. Raises RemoteUnavailableError."""
    remote.put(lease_name(name), RELEASED, replace=True)
