"""Which of several machines compiles what none has? The first that writes a lease; the others wait until it publishes.

A lease only saves work. It ends when its text has not changed for some seconds by the clock of whoever waits, so that a
machine that died, or whose clock is wrong, holds nobody up for longer. A store that replaces what is there gives
everybody the lease: each compiles then, and the first to publish wins.
"""

from __future__ import annotations

import logging
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sgljit_core import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from .remote import Remote

SECONDS = 30.0  # longer than most kernels take to compile
MOST_SECONDS = 300.0  # also where the lease changes again and again
RELEASED = b"released"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
_LARGEST = 64


def lease_name(name: str) -> str:
    """The name of the lease of an object."""
    return f"{name.removesuffix('.zip')}.lease"


def taken_or_found(remote: Remote, name: str, look: Callable[[], Path | None]) -> Path | None:
    """Take the lease of an object, or wait until another machine has published it.

    Args:
        look: looks for the object; the root that it was kept below, or None.

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
    while seen not in (None, RELEASED) and time.monotonic() < min(since + SECONDS, start + MOST_SECONDS):
        time.sleep(pause)
        pause = min(1.5 * pause, _LONGEST_PAUSE)
        if (found := look()) is not None:
            return found
        if (now := remote.get(lease, _LARGEST)) != seen:
            seen, since = now, time.monotonic()
    remote.put(lease, token, replace=True)
    return None


def release(remote: Remote, name: str) -> None:
    """Let the others no longer wait, as nothing will be published. Raises RemoteUnavailableError."""
    remote.put(lease_name(name), RELEASED, replace=True)
