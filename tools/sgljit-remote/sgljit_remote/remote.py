"""The remote of this process: one artifact is asked for, or published, and whatever fails is a warning.

The index is asked first, once in a process: an archive that holds a missing artifact brings all that it has in one
request. Else the artifact is an object of its own, one request. A remote that does not answer is asked no more.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from sgljit_core import log
from sgljit_core.builds import record
from sgljit_core.cache import lookup, store
from sgljit_core.cache.manifest import FILE
from sgljit_core.errors import ConfigError
from sgljit_core.lazy import collector_paused
from sgljit_core.machine import private, roots
from sgljit_core.machine.forks import ForkLock, OncePerKey

from . import config, handed, index, objects, stores
from .asking import TryAgainError, ask
from .config import Settings
from .counts import count, refuse, refused
from .errors import KeyFileError, LossError, RefusedObjectError, RemoteUnavailableError, UntrustedRemoteError
from .index import Archive
from .objects import Artifact, Unpacked, object_name
from .store import Sink

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from . import lease
    from .archives import Behind
    from .signing import TrustedKey

T = TypeVar("T")

_MOST_BESIDE = 7  # artifacts of one source and toolchain that an object keeps beside a new one
LARGEST_ARCHIVE = 256 << 20  # of a larger one, which is for ``pull``, a process takes single artifacts
_TIMES_FOR_AN_ARCHIVE = 10  # the limit of one artifact, for the many of an archive that keeps coming


class Remote:
    """A remote, as the settings describe it.

    Raises:
        KeyFileError: a key cannot be used.
        UntrustedRemoteError: nothing says whose code it holds.
        RemoteUnavailableError: nor does anybody know its scheme, which may be misspelt.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.trusted: tuple[TrustedKey, ...] = ()
        self._while_asking: list[Callable[[], object]] = []  # one for each of the first questions, the last one first
        if settings.trusted_keys:
            from . import signing

            self.trusted = signing.public_keys(settings.trusted_keys)
            self._while_asking = [functools.partial(signing.load_keys, self.trusted), signing.import_library]
        is_checked = bool(self.trusted) or settings.unsigned
        self.store = stores.opened(settings.url, settings.timeout, check_owners=not is_checked)
        if self.store.is_network and not is_checked:
            self.store.check_scheme()
            raise UntrustedRemoteError(
                f"the remote {self.store.shown} is not used: whoever can write there could run code as you. Name the "
                f"keys whose code you trust in SGLJIT_TRUSTED_KEYS, or accept it as it is with SGLJIT_REMOTE_UNSIGNED=1"
            )

    def patient(self, seconds: float) -> Remote:
        """The same remote, with at least so many seconds for an artifact. Raises KeyFileError: a key is gone."""
        return Remote(self.settings._replace(timeout=max(self.settings.timeout, seconds)))

    def get(self, name: str, most: int = lookup.LARGEST, times: float = 1) -> bytes | None:
        """An object, in ``times`` the time-out; None where there is none.

        Raises RemoteUnavailableError, and RefusedObjectError where it is too large.
        """
        content = bytearray()
        sink = Sink(content.extend, content.clear)
        is_there = self._ask(name, lambda deadline: self.store.stream(name, most, deadline, sink), sink, times)
        self._count_read(name, len(content))
        return bytes(content) if is_there else None

    def save(self, name: str, file: BinaryIO, most: int = lookup.LARGEST) -> bool:
        """Write an object to an empty file, piece by piece; whether there is one.

        Raises as ``get`` does, and RefusedObjectError where the file takes no more.
        """
        end = math.inf

        def write(piece: bytes) -> None:
            if time.monotonic() > end:  # nobody waits any more, and the file may be closed
                raise TryAgainError(f"it was not done with {name} in time")
            try:
                file.write(piece)
                file.flush()  # a full disk shows now
            except OSError as error:  # which is no failure of the remote
                raise RefusedObjectError(f"{name} cannot be written to {file.name} ({error.strerror})") from error

        def clear() -> None:
            file.seek(0)
            file.truncate()

        sink = Sink(write, clear)

        def question(deadline: float) -> bool:
            nonlocal end
            end = deadline
            return self.store.stream(name, most, deadline, sink)

        is_there = self._ask(name, question, sink)
        self._count_read(name, file.tell())
        return is_there

    def put(self, name: str, content: bytes, *, replace: bool = False) -> bool:
        """Write an object; whether it was not there. Raises RemoteUnavailableError."""
        is_new = self._ask(name, lambda deadline: self.store.put(name, content, deadline, replace=replace))
        if is_new:
            count(bytes_written=len(content))
            record.event("written", self._place(name), size=len(content))
        return is_new

    def _count_read(self, name: str, size: int) -> None:
        count(bytes_read=size)
        if size:
            record.event("read", self._place(name), size=size)

    def _place(self, name: str) -> str:
        return f"{self.store.shown}/{name}"

    def _ask(self, name: str, question: Callable[[float], T], sink: Sink | None = None, times: float = 1) -> T:
        heard = (lambda: sink.heard) if sink else lambda: 0
        try:
            self.store.get_ready()  # no server is late while this machine imports
            place = self._place(name)
            return ask(question, self.settings.timeout, self._meanwhile, place, times=times, heard=heard)
        except RemoteUnavailableError as error:
            raise RemoteUnavailableError(f"the remote {self.store.shown} cannot be used now: {error}") from error

    def _meanwhile(self) -> None:
        """Get ready, step by step, for what a server answers."""
        with collector_paused():  # most steps import
            self._step()

    def _step(self) -> None:
        try:
            step = self._while_asking.pop()
        except IndexError:  # another thread has taken the last one
            return
        step()

    def get_ready(self) -> None:
        """Import what the store needs, which no question then waits for. Raises RemoteUnavailableError.

        A thread may call it: the collector, which the program may switch meanwhile, is left alone.
        """
        self.store.get_ready()
        while self._while_asking:
            self._step()

    def archives(self) -> dict[str, Archive]:
        """The archives by name. Raises RemoteUnavailableError, and RefusedObjectError where the index is none."""
        return index.parse(self.get(index.NAME, index.LARGEST))

    def unpack(self, name: str, content: bytes) -> Unpacked:
        """The artifacts of an object; each that is refused is a warning."""
        try:
            unpacked = objects.unpack(content, self.trusted)
        except RefusedObjectError as error:
            self.refuse(name, str(error), len(content))
            return Unpacked((), {name: str(error)})
        for place, reason in unpacked.refused.items():
            self.refuse(name, f"{place}: {reason}", len(content))
        return unpacked

    def refuse(self, name: str, reason: str, size: int = 0) -> None:
        """Say why an object is not used; its size if it came."""
        refuse(self.store.shown, name, reason, size)

    def signer(self) -> Ed25519PrivateKey | None:
        """The key that signs today, read anew; None where nothing asks for signatures, and there is none.

        Raises:
            KeyFileError: it cannot be used, or has expired. Objects that others signed can still be read.
            UntrustedRemoteError: keys are trusted, and none is named to sign with.
        """
        if self.settings.signing_key is None:
            if self.trusted:
                raise UntrustedRemoteError(
                    "SGLJIT_TRUSTED_KEYS asks for signatures, and there is no key to sign with: name one with --sign, "
                    "or in SGLJIT_SIGNING_KEY"
                )
            return None
        from . import signing

        return signing.private_key(self.settings.signing_key)

    def publish_one(
        self, artifact: Artifact, key: Ed25519PrivateKey | None, *, replace: bool = False, beside: bool = False
    ) -> bool:
        """Write the objects of one artifact; whether it was not there. Raises RemoteUnavailableError.

        Args:
            replace: write it also where one is there.
            beside: keep what that one holds: the same source, compiled beside other files.
        """
        content, location = objects.pack([artifact], key), artifact.manifest.location.path
        is_new = False
        for toolchain_key in (None, artifact.manifest.toolchain_key):
            name = object_name(location, toolchain_key)
            whole = content
            if beside:
                whole, _ = self.joined(content, name, lambda place: place != artifact.place, _MOST_BESIDE)
            is_new = self.put(name, whole, replace=replace or beside)
        return is_new

    def joined(
        self, content: bytes, name: str, keep: Callable[[str], bool], most: int | None = None, *, may_lose: bool = True
    ) -> tuple[bytes, list[str]]:
        """An object's new content with what it holds so far, as that was signed and if it is valid; the places of that.

        Args:
            keep: whether an artifact stays, by its place.
            most: so many of them; by default all that an object may have.
            may_lose: leave out what is refused, or has no room.

        Raises RemoteUnavailableError, and LossError.
        """
        try:
            old = self.get(name, LARGEST_ARCHIVE, _TIMES_FOR_AN_ARCHIVE)
        except RefusedObjectError as error:
            self.refuse(name, str(error))
            if not may_lose:
                raise LossError(name) from error
            return content, []
        found = self.unpack(name, old) if old is not None else Unpacked((), {})
        kept = [artifact.place for artifact in found.artifacts if keep(artifact.place)][:most]
        whole = objects.joined(content, old, frozenset(kept)) if old and kept else content
        much = f"it has more than {LARGEST_ARCHIVE} bytes" if len(whole) > LARGEST_ARCHIVE else objects.too_much(whole)
        if not may_lose and (found.refused or much):
            raise LossError(name)
        if kept and much:
            log.once(
                "remote_dropped",
                name,
                f"{name} at {self.store.shown} would get too large, as {much}: {len(kept)} artifacts that it had are "
                "left out, which machines then ask for one by one. Push to an archive with a name, or --replace what "
                "is old",
            )
            return content, []
        return whole, kept


class Session:
    """The questions of this process to a remote. No method raises.

    Args:
        archives: add what is published to the archives of its families, a while later.
    """

    def __init__(self, remote: Remote, *, archives: bool = False) -> None:
        self._remote = remote
        self._behind: Behind | None = None
        if archives:
            from .archives import Behind

            self._behind = Behind(self._archive)
        self._lock = ForkLock()  # for the index and archives: other threads wait for what one brings
        self._archives: dict[str, Archive] | None = None
        self._taken: dict[str, Path] = {}  # by the place of an artifact that an archive brought, its root
        self._brought: set[str] = set()  # the places of all artifacts that were kept
        self._refused: set[str] = set()
        self._leased: dict[str, lease.Held] = {}  # by the keys of what this process compiles for other machines
        self._is_down = False

    def get_ready(self) -> None:
        """Do what the first questions would do while they wait. Asks nothing. Raises RemoteUnavailableError."""
        self._remote.get_ready()

    def fetch(self, location: Path, toolchain_key: str | None, root: Path) -> Path | None:
        """Bring an artifact below ``root``, or below a directory of this process; that root, None if it is nowhere."""
        with self._lock.here():
            found = None if self._is_down else self._guarded(lambda: self._by_archive(location, toolchain_key, root))
        if found is not None or self._is_down:
            return found
        look = functools.partial(self._by_itself, location, toolchain_key, root)
        if toolchain_key is None:
            return self._guarded(look)
        return self._found_or_leased(object_name(location, toolchain_key), location.name, look)

    def _found_or_leased(
        self, name: str, key: str, look: Callable[[], T | None], *, is_renewed: bool = True
    ) -> T | None:
        """The answer of ``look``, now or when another machine has published; None where this one is to compile.

        Args:
            key: of the lease, for ``release``.
            is_renewed: whether the lease is renewed until then.
        """
        found = self._guarded(look)
        if found is not None or name in self._refused or not self._may_compile_for_all():
            return found
        return self._guarded(lambda: self._by_another(name, key, look, is_renewed))

    def _may_compile_for_all(self) -> bool:
        """Whether what is compiled here is published, so that other machines may wait for it."""
        settings = self._remote.settings
        return settings.is_writable and settings.may_compile and not self._is_down and self._signer() is not None

    def _signer(self) -> tuple[Ed25519PrivateKey | None] | None:
        """The key to publish with, if one is needed; None, with a warning, where nothing can be published."""
        try:
            return (self._remote.signer(),)
        except (KeyFileError, UntrustedRemoteError) as error:
            text = f"nothing is published: {error}"
            log.once("remote_unsigned", self._remote.store.shown, text, url=self._remote.store.shown)
            return None

    @functools.cached_property
    def _patience(self) -> lease.Patience:
        from . import lease

        return lease.Patience()

    def _by_another(self, name: str, key: str, look: Callable[[], T | None], is_renewed: bool) -> T | None:
        """Wait for another machine that compiles the object; None where this one is to compile it."""
        from . import lease

        try:
            found = lease.taken_or_found(self._remote, name, look, self._patience)
        except RefusedObjectError as error:
            self._remote.refuse(lease.lease_name(name), str(error))
            return None
        if found is None:
            self._leased[key] = lease.Held(self._remote, name, is_renewed=is_renewed)
            handed.leased[key] = functools.partial(self.release, key)
        return found

    def release(self, key: str) -> None:
        """Let other machines no longer wait for what was published, or could not be compiled here."""
        handed.leased.pop(key, None)
        held = self._leased.pop(key, None)
        if held is not None and self._is_down:
            held.is_over.set()
        elif held is not None:
            self._guarded(held.release)

    def publish(self, artifact: Artifact) -> None:
        """Publish what was compiled here, unless it is there. It replaces an object that was refused.

        One that was brought and did not serve was compiled beside other files, which no key covers: it stays beside it.
        """
        location, toolchain_key = artifact.manifest.location.path, artifact.manifest.toolchain_key
        try:
            if self._is_down or (signer := self._signer()) is None:
                return
            names = {object_name(location, toolchain_key), object_name(location, None)}
            brought = tuple(self._brought)  # to which other threads add
            beside = any(index.is_at(place, location, toolchain_key) for place in brought)
            replace = not names.isdisjoint(self._refused)

            def write() -> None:
                is_new = self._remote.publish_one(artifact, *signer, replace=replace, beside=beside)
                count(published=is_new)
                if is_new and self._behind is not None:
                    self._behind.add(artifact)

            self._guarded(write)
        finally:
            self.release(location.name)  # or whoever misses it when it has been removed would wait for nobody

    def _archive(self, published: list[Artifact]) -> None:
        """Add what was published to the archives of its families."""
        from . import archives

        if self._is_down or (signer := self._signer()) is None:
            return
        try:
            archives.add(self._remote, published, *signer, LARGEST_ARCHIVE)
        except RefusedObjectError as error:
            self._remote.refuse(index.NAME, str(error))
        except (RemoteUnavailableError, KeyFileError) as error:  # single objects may still be read and written
            shown = self._remote.store.shown
            text = f"{error}. Until a push machines ask one by one for what this process published"
            log.once("remote_unarchived", shown, text, url=shown, reason=str(error))

    @property
    def trusted(self) -> tuple[TrustedKey, ...]:
        """The keys, one of which must have signed what is used; none where no signature is asked for."""
        return self._remote.trusted

    @property
    def is_writable(self) -> bool:
        """Whether what is compiled here is published."""
        return self._remote.settings.is_writable

    def bring(self, name: str, most: int, unpack: Callable[[bytes], T], *, is_leased: bool) -> T | None:
        """An object of another kind, as ``unpack`` gives it; None where there is none that can be used.

        One that is refused is replaced when it is published from here.

        Args:
            unpack: verifies the object, or raises RefusedObjectError.
            is_leased: where it is missing, one machine makes it for all, and ends its lease by ``give``. The lease is
                not renewed: nobody says when it could not be made.
        """
        if self._is_down:
            return None

        def look() -> T | None:
            try:
                content = self._remote.get(name, most)
                return None if content is None else unpack(content)
            except RefusedObjectError as error:
                self._refused.add(name)
                self._remote.refuse(name, str(error))
                return None

        return self._found_or_leased(name, name, look, is_renewed=False) if is_leased else self._guarded(look)

    def give(self, name: str, pack: Callable[[Ed25519PrivateKey | None], bytes]) -> None:
        """Publish an object of another kind, packed and signed by the caller, unless it is there."""
        try:
            if self._is_down or (signer := self._signer()) is None:
                return
            content, replace = pack(*signer), name in self._refused
            self._guarded(lambda: count(published=self._remote.put(name, content, replace=replace)))
        finally:
            self.release(name)

    def _guarded(self, call: Callable[[], T | None]) -> T | None:
        """Call what may find the remote down, which is not asked again then, or no room on this machine."""
        try:
            return call()
        except RemoteUnavailableError as error:
            self._is_down = True
            shown = self._remote.store.shown
            text = f"{error}. This process asks it no more, and compiles what is missing"
            log.once("remote_down", shown, text, url=shown, reason=str(error))
        except OSError as error:
            shown = self._remote.store.shown
            text = f"no directory of this machine takes what {shown} has ({error}): it is not used. Make room"
            log.once("remote_unkept", shown, text, url=shown, reason=str(error))
        return None

    def _by_archive(self, location: Path, toolchain_key: str | None, root: Path) -> Path | None:
        """Take the smallest archive that holds an artifact, unless it was taken; the next one if that lacks it."""
        if self._archives is None:
            try:
                archives = self._remote.archives()
                self._archives = dict(sorted(archives.items(), key=lambda item: item[1].size))
            except RefusedObjectError as error:
                self._remote.refuse(index.NAME, str(error))
                self._archives = {}

        def taken() -> Path | None:
            places = self._taken.items()
            return next((kept for place, kept in places if index.is_at(place, location, toolchain_key)), None)

        for archive in list(self._archives.values()):
            if (found := taken()) is not None:
                return found
            if archive.size > LARGEST_ARCHIVE or not archive.holds(location, toolchain_key):
                continue
            del self._archives[archive.name]  # a second attempt would bring the same
            try:
                content = self._remote.get(archive.object_name, LARGEST_ARCHIVE, _TIMES_FOR_AN_ARCHIVE)
            except RefusedObjectError as error:
                self._remote.refuse(archive.object_name, str(error))
                continue
            for artifact in self._remote.unpack(archive.object_name, content).artifacts if content else ():
                self._taken[artifact.place] = self._keep(artifact, root)
        return taken()

    def _by_itself(self, location: Path, toolchain_key: str | None, root: Path) -> Path | None:
        name = object_name(location, toolchain_key)
        try:
            content = self._remote.get(name)
        except RefusedObjectError as error:
            self._remote.refuse(name, str(error))
            return None
        if content is None:
            return None
        kept = None
        for artifact in self._remote.unpack(name, content).artifacts:
            if index.is_at(artifact.place, location, toolchain_key):
                kept = self._keep(artifact, root)
            else:
                self._remote.refuse(name, f"it holds another artifact, {artifact.place}", len(content))
        if kept is None:
            self._refused.add(name)
        return kept

    def _keep(self, artifact: Artifact, root: Path) -> Path:
        self._brought.add(artifact.place)
        return keep(artifact, root)


def keep(artifact: Artifact, root: Path) -> Path:
    """Put a verified artifact below a root, or below a directory of this process where that takes no files; which.

    It is not synced to the disk, which takes several times as long: after a power failure it may be damaged, which the
    next load sees, and the remote has it still. Raises OSError: neither takes files.
    """
    try:
        put_in_place(artifact, root, is_synced=False)
    except OSError as error:
        own = private.process_directory() / "remote"
        put_in_place(artifact, own, is_synced=False)
        text = f"the cache {root} cannot be written ({error}): what comes from a remote serves this process alone"
        log.once("cache_unwritable", str(root), text, root=str(root), reason=str(error))
        return own
    return root


def put_in_place(artifact: Artifact, root: Path, *, is_synced: bool = True) -> None:
    """Put a verified artifact below a root, complete and by one rename. Raises OSError: the root takes no files."""
    manifest = artifact.manifest
    staging = store.staging_directory(root, "remote")
    try:
        if is_synced:
            store.publish(staging, root, manifest.location, manifest, artifact.payload)
            count(artifacts=1)
            return
        place = Path(artifact.place)
        for name, content in ((manifest.payload, artifact.payload), (FILE, manifest.dump())):
            descriptor = os.open(staging / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                roots.share(descriptor)
                file.write(content)
        roots.share(staging)  # which nobody else could write to before
        roots.make(root, *place.parent.parts)
        try:
            staging.rename(root / place)
        except OSError:  # something is there
            store.settle(staging, root, place)
        count(artifacts=1)
    finally:
        store.discard(staging)


_sessions: OncePerKey[Settings, Session | None] = OncePerKey()
_wrong_settings: OncePerKey[str, None] = OncePerKey()  # by what is wrong


def session(settings: Settings) -> Session | None:
    """The session of this process with the remote of some settings; None, with a warning, where it must not be used."""
    return _sessions.get(settings, lambda: _session(settings))


def current() -> Session | None:
    """The session with the remote that the environment names; None, with a warning, where it must not be used."""
    if not config.url():
        return None
    try:
        return session(config.settings())
    except ConfigError as error:
        reason = str(error)
        _wrong_settings.get(reason, lambda: _not_used("SGLJIT_REMOTE", reason, f"the remote is not used: {reason}"))
        return None


def _session(settings: Settings) -> Session | None:
    try:
        return Session(Remote(settings), archives=settings.is_writable)
    except (KeyFileError, UntrustedRemoteError, RemoteUnavailableError) as error:
        _not_used(stores.shown(settings.url), str(error), str(error))
        return None


def _not_used(place: str, reason: str, text: str) -> None:
    """Count a remote that is not used, and say why."""
    refused(place, reason)
    log.once("remote_refused", f"{place} {reason}", text, reason=reason)
