"""Which of several machines compiles what none has? The first that writes a lease; the others wait until it publishes.

A lease only saves work. Its holder writes another text from time to time. A lease ends when its text has not changed
for some seconds by the clock of whoever waits, so that a machine that died, or whose clock is wrong, holds nobody up
for longer. A process that has waited so long in vain waits for no other artifact either: many leases of one dead
machine cost it one wait.

One of those that see a lease end takes it over: the first to write an object that is named after the lease and its last
text. So nothing more is asked of a store than that it keeps what is there. One that replaces it gives everybody the
lease: each compiles then, and the first to publish wins.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from sgljit_core import log
from sgljit_core.machine.forks import ForkLock

from .errors import RefusedObjectError, RemoteUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .remote import Remote

T = TypeVar("T")

SECONDS = 30.0  # several times as long as a holder takes to write it anew
MOST_SECONDS = 300.0  # of all waits, also where leases change again and again
_TURN_SECONDS = 60.0  # of a wait for those that write before this process
_TURN_SECONDS_AT_EXIT = 10.0  # the same in a program that has ended, where they write: one that died has its SECONDS
RELEASED = b"released"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
_LARGEST = 64
_MOST_DEAD = 8


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
    lease, token = lease_name(name), _text()
    if remote.put(lease, token):
        return None
    log.log(logging.INFO, "remote_waiting", f"another machine compiles {name}: this one waits for it", object=name)
    start = since = time.monotonic()
    seen, pause = remote.get(lease, _LARGEST), _FIRST_PAUSE
    if seen == token:  # it was written, and the answer was lost
        return None
    lost: bytes | None = token  # the last text of a lease that yet another machine has taken over
    while patience.has(start, since) or seen != lost:
        is_free = seen is None or seen.startswith(RELEASED)
        if seen != lost and (is_free or not patience.has(start, since)):
            if is_free and (found := look()) is not None:  # it was published after the last look, and then released
                return found
            if _taken_over(remote, lease, seen, token):
                break
            lost, since = seen, time.monotonic()
            continue
        time.sleep(pause)
        pause = min(1.5 * pause, _LONGEST_PAUSE)
        if (found := look()) is not None:
            patience.spend(start, time.monotonic())
            return found
        if (now := remote.get(lease, _LARGEST)) != seen:
            seen, since = now, time.monotonic()
    patience.spend(start, since)
    return None


def taken(remote: Remote, name: str) -> bool:
    """Take the lease of an object that processes write in turn; whether this one got it in time.

    Raises RemoteUnavailableError. A lease that is none is a warning.
    """
    try:
        return _taken(remote, lease_name(name))
    except RefusedObjectError as error:
        remote.refuse(lease_name(name), str(error))
        return False


def _taken(remote: Remote, lease: str) -> bool:
    token = _text()
    if remote.put(lease, token):
        return True
    start = since = time.monotonic()
    seen, pause = _last_text(remote, lease), _FIRST_PAUSE
    while seen != token:  # else it was written, and the answer was lost
        now = time.monotonic()
        others_write, has_ended = since > start, not threading.main_thread().is_alive()
        if now - start > (_TURN_SECONDS_AT_EXIT if others_write and has_ended else _TURN_SECONDS):
            return False
        is_free = seen is None or seen.startswith(RELEASED) or now - since > SECONDS
        if is_free and _taken_over(remote, lease, seen, token):
            return True
        time.sleep(pause)
        pause = min(1.5 * pause, _LONGEST_PAUSE)
        if (text := _last_text(remote, lease)) != seen:
            seen, since = text, time.monotonic()
    return True


def _last_text(remote: Remote, lease: str) -> bytes | None:
    """The text of a lease, or of the last machine that died while it took it over."""
    text = remote.get(lease, _LARGEST)
    for _ in range(_MOST_DEAD):
        if text is None or (taken_by := remote.get(_object_of(lease, text), _LARGEST)) is None:
            break
        text = taken_by
    return text


def _object_of(lease: str, text: bytes) -> str:
    """The object that the next holder of a lease writes first, by the last text of the one before."""
    return f"{lease}.{hashlib.sha256(text).hexdigest()[:32]}"


def _text() -> bytes:
    return secrets.token_hex(16).encode()


def _taken_over(remote: Remote, lease: str, seen: bytes | None, token: bytes) -> bool:
    """Take a lease that has ended, by its last text; whether no other machine was faster."""
    if seen is None:
        return remote.put(lease, token)
    if not remote.put(_object_of(lease, seen), token):
        return False
    remote.put(lease, token, replace=True)
    return True


class Held:
    """A lease of this process. A thread may renew it until its release, and no longer than anybody waits."""

    def __init__(self, remote: Remote, name: str, *, is_renewed: bool) -> None:
        self._remote, self._lease = remote, lease_name(name)
        self.is_over = threading.Event()  # set it to renew the lease no more
        self._thread = threading.Thread(target=self._renew, name="sgljit-lease", daemon=True)
        if is_renewed:
            with contextlib.suppress(RuntimeError):  # no thread is left: others wait for less long
                self._thread.start()

    def _renew(self) -> None:
        end = time.monotonic() + MOST_SECONDS
        with contextlib.suppress(RemoteUnavailableError):
            while not self.is_over.wait(SECONDS / 4) and time.monotonic() < end:
                self._remote.put(self._lease, _text(), replace=True)

    def release(self) -> None:
        """Let the others no longer wait, as the object is published or will not be. Raises RemoteUnavailableError."""
        self.is_over.set()
        if self._thread.is_alive():
            self._thread.join()  # what it writes now must not come later
        self._remote.put(self._lease, RELEASED + b" " + _text(), replace=True)
