"""How do artifacts get into the archives of their families? By a push, and behind a process that publishes.

A process in the mode ``readwrite`` publishes each artifact as an object of its own, at once. When it has published
nothing for some seconds, and when it ends, a thread adds what it published to the archives: the next machine then makes
two requests, and not one for each artifact. A process that is killed loses no more than that. Rejected: to write the
archive at each artifact, which writes all others anew; and at ``freeze`` alone, which not every program calls.

Writers take turns by a lease. One that does not get it in time, or cannot keep what an archive has, leaves it alone.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from sgljit_core.cache.manifest import Manifest
from sgljit_core.machine.forks import ForkLock

from . import index, lease, objects
from .errors import LossError, RefusedObjectError, RemoteUnavailableError
from .index import Archive
from .objects import Artifact

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from .remote import Remote

PAUSE = 0.3  # seconds: longer than another push takes from reading the index to writing it
CALM = 10.0  # seconds without an artifact, after which a warm-up is over, or waits for something slow
_ATTEMPTS = 10
_SECONDS = 60.0  # for an archive of many artifacts to be written, as a push has; the limit of one would be too short


def family_of(manifest: Manifest) -> Archive:
    """The archive that an artifact belongs to, without artifacts: of its family and target."""
    family = manifest.family or "_"
    return Archive(f"{manifest.target}.{family}", family, manifest.target, 0, ())


def grouped(artifacts: Iterable[Artifact]) -> dict[Archive, list[Artifact]]:
    """Some artifacts by the archives of their families."""
    groups: dict[Archive, list[Artifact]] = {}
    for artifact in artifacts:
        groups.setdefault(family_of(artifact.manifest), []).append(artifact)
    return groups


def packed(
    remote: Remote,
    archive: Archive,
    members: Iterable[Artifact],
    key: Ed25519PrivateKey | None,
    *,
    is_joined: bool = True,
    may_lose: bool = True,
) -> tuple[Archive, bytes]:
    """An archive of some artifacts: its entry and its content.

    Args:
        is_joined: with what it has so far, whatever the index says of that.
        may_lose: leave out what cannot be kept.

    Raises:
        RemoteUnavailableError: the remote does not answer.
        LossError: something may not be lost, and cannot be kept.
        RefusedObjectError: the artifacts are too many, or too large, for one archive.
    """
    members = list(members)
    content, places = objects.pack(members, key), [member.place for member in members]
    if much := objects.too_much(content):  # leaving out what the archive has would not help
        text = f"the archive {archive.name} is not written, as each machine would refuse it: {much}"
        raise RefusedObjectError(text) if may_lose else LossError(text)
    if is_joined:
        own = frozenset(places)
        content, others = remote.joined(content, archive.object_name, lambda place: place not in own, may_lose=may_lose)
        places += others
    return archive._replace(size=len(content), artifacts=tuple(places)), content


def add(remote: Remote, published: Iterable[Artifact], key: Ed25519PrivateKey | None, most: int) -> None:
    """Add what was published to the archives of its families, if this process may write them in time.

    An archive stays as it is where it would lose something: what this machine does not trust, or what has no room.

    Args:
        most: an archive may have so many bytes.

    Raises:
        RemoteUnavailableError: the remote does not answer.
        KeyFileError: a trusted key cannot be read any more.
        RefusedObjectError: the index is none. A push writes it anew.
    """
    if not lease.taken(remote, index.NAME):
        return
    held = lease.Held(remote, index.NAME, is_renewed=True)
    try:
        known, patient, written = remote.archives(), remote.patient(_SECONDS), {}
        for archive, members in grouped(published).items():
            old = known.get(archive.name, archive)
            is_there = all(member.place in old.artifacts for member in members)
            if is_there or old.size + sum(len(member.payload) for member in members) > most:
                continue
            with contextlib.suppress(LossError):
                entry, content = packed(remote, archive, members, key, may_lose=False)
                patient.put(entry.object_name, content, replace=True)
                written[entry.name] = entry
        if written:
            enter(remote, written, remote.archives)
    finally:
        with contextlib.suppress(RemoteUnavailableError):  # the lease ends by itself
            held.release()


def enter(remote: Remote, written: Mapping[str, Archive], known: Callable[[], Mapping[str, Archive]]) -> None:
    """Add archives to the index. Another push may write it at the same time, without them: look, and add them again.

    Args:
        known: the archives that the index has now.

    Raises RemoteUnavailableError, and what ``known`` does.
    """
    for _ in range(_ATTEMPTS):
        if written.items() <= (there := known()).items():
            return
        remote.put(index.NAME, index.dump({**there, **written}.values()), replace=True)
        time.sleep(PAUSE * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
    if not written.items() <= known().items():
        shown, names = remote.store.shown, ", ".join(written)
        raise RemoteUnavailableError(f"{shown} does not keep {names} in its index, as others write it; push again")


def listed(remote: Remote) -> dict[str, Archive]:
    """The archives that a remote has; none, with a warning, where its index cannot be read: it is written anew.

    Raises RemoteUnavailableError.
    """
    try:
        return remote.archives()
    except RefusedObjectError as error:
        remote.refuse(index.NAME, str(error))
        return {}


class Behind:
    """Hands on what was published: when nothing has come for some seconds, and when the program ends.

    A thread does it that is no daemon, so that the interpreter waits for it: functions of ``atexit`` are called when no
    thread can start any more. A child process that was forked meanwhile hands on nothing of its parent's.
    """

    def __init__(self, hand_on: Callable[[list[Artifact]], object]) -> None:
        self._hand_on = hand_on
        self._lock = ForkLock()
        self._waiting: list[Artifact] = []
        self._since = 0.0
        self._thread: threading.Thread | None = None

    def add(self, artifact: Artifact) -> None:
        """Take an artifact. Where no thread can start, it comes into no archive."""
        with self._lock.here():
            if self._thread is None or not self._thread.is_alive():  # as in a forked child
                self._waiting.clear()
                self._thread = threading.Thread(target=self._run, name="sgljit-remote-archive", daemon=False)
                try:
                    self._thread.start()
                except RuntimeError:
                    return
            self._waiting.append(artifact)
            self._since = time.monotonic()

    def _run(self) -> None:
        while True:
            with self._lock.here():
                left = self._since + CALM - time.monotonic() if threading.main_thread().is_alive() else 0
                if left <= 0:
                    found, self._waiting = self._waiting, []
                    if not found:
                        self._thread = None
                        return
            if left > 0:
                threading.main_thread().join(left)
            else:
                self._hand_on(found)
