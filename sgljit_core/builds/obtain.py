"""How a request for code is answered: find it; else decide, lock, find it again, make it, load it, publish it.

A made payload is loaded *before* it is published, so that nothing that does not load is ever visible to anybody else.

Nothing that goes wrong with the cache itself stops a build: a root that cannot be written, a full disk or a file
system without locks costs only the sharing, and is said once.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from sgljit_core import log, paths
from sgljit_core._version import __version__
from sgljit_core.cache import store
from sgljit_core.cache.explain import Explanation, explain_miss
from sgljit_core.cache.manifest import Manifest
from sgljit_core.cache.store import Search, Tier
from sgljit_core.config import settings
from sgljit_core.errors import (
    ArtifactLoadError,
    CaptureError,
    CompileError,
    CompileForbiddenError,
    SgljitError,
    SourceChangedError,
    ToolchainNotFoundError,
    UntrustedCacheError,
)
from sgljit_core.machine import trust
from sgljit_core.machine.locks import FileLock, back_off

from . import policy, progress
from .extensions import extensions
from .request import Product, Request

__all__ = ["LOCK_SECONDS", "obtain", "until_current"]

T = TypeVar("T")

LOCK_SECONDS = 300.0  # after which somebody else's build is no longer waited for
_REPORT_SECONDS = 2.0
_ATTEMPTS = 5
_ENDED = "SGLJIT_CACHE_DIR names the cache; `sgljit cache build` fills it ahead of time"


def until_current(attempt: Callable[[], T]) -> T:
    """Call ``attempt`` again, up to five times in all, as long as sources are written while they are compiled.

    Raises:
        SourceChangedError: they were written each time.
    """
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(SourceChangedError):
            return attempt()
    return attempt()


def obtain(request: Request[T]) -> T:
    """The code that a request asks for, from a tier or made now.

    Raises:
        CompileForbiddenError, CaptureError: it must be made and may not be.
        ToolchainNotFoundError: it must be made and a compiler is missing.
        CompileError: it cannot be made.
        SourceChangedError: a source was written while it was being made; make a new request.
        UntrustedCacheError: a tier could have been written by somebody else.
    """
    return _Answer(request).find_or_make()


class _Answer(Generic[T]):
    """One request being answered, and the damaged artifacts that were met on the way."""

    def __init__(self, request: Request[T]) -> None:
        self.request = request
        self.damaged: tuple[store.Damage, ...] = ()

    def find_or_make(self) -> T:
        request = self.request
        for tiers in self._tiers():
            found = self._load(tiers)
            if found is not None:
                return found[0]
        self._check_allowed()
        if request.tools is None:  # damaged artifacts stay: the next process shall hear about them too
            raise self._no_toolchain()
        with _locked(request):
            found = self._load([Tier(request.root)])  # somebody may have published it since the first look
            return found[0] if found is not None else self._make()

    def _tiers(self) -> Iterator[list[Tier]]:
        """The tiers in the order of the search; plugins, which take a while to ask, are asked last."""
        prebuilt = [Tier(directory.resolve()) for directory in settings().prebuilt]
        for tier in prebuilt:
            if not tier.root.is_dir():
                text = f"SGLJIT_PREBUILT_PATH names {tier.root}, which is not a directory"
                log.once("prebuilt_missing", str(tier.root), text)
        carried = self.request.build.carried
        yield [*prebuilt, *([Tier(carried, vouched=True)] if carried else []), Tier(self.request.root)]
        vouched = [Tier(directory, vouched=True) for directory in extensions().prebuilt_roots()]
        if vouched:
            yield vouched

    def _load(self, tiers: Sequence[Tier]) -> tuple[T] | None:
        """Find and load. An artifact that is damaged or that this machine cannot load counts as none."""
        request = self.request
        search = store.find(tiers, request.location, request.toolchain_key, request.serves)
        self._note(search)
        artifact = search.artifact
        if policy.is_explaining():
            if artifact is not None:
                raise policy.Explained(Explanation(request.named.label, request.location, artifact.directory))
            return None
        if artifact is None:
            return None
        try:
            return (request.load(artifact.payload),)
        except ArtifactLoadError as error:
            log.once("artifact_unusable", str(artifact.directory), f"{artifact.directory}: {error}")
            return None

    def _note(self, search: Search) -> None:
        self.damaged += tuple(damage for damage in search.damaged if damage not in self.damaged)
        for damage in search.damaged:
            text = f"{damage.directory} is damaged and not used: {damage.reason}"
            log.once("artifact_damaged", str(damage.directory), text, directory=str(damage.directory))

    def _explain(self) -> Explanation:
        """What sets the request apart from the nearest artifact, in any tier. It reads many manifests."""
        request = self.request
        roots = [request.root, *settings().prebuilt, *extensions().prebuilt_roots()]
        roots += [request.build.carried] if request.build.carried else []
        label, markers = request.named.label, request.build.markers
        return explain_miss(label, markers, request.location, request.source, request.tools, roots)

    def _check_allowed(self) -> None:
        """Raise where nothing may be compiled now; else say why something will be, to whoever listens."""
        if policy.is_explaining():
            raise policy.Explained(self._explain())
        build = self.request.named
        if policy.is_capturing():
            raise CaptureError(build.label, str(self._explain()))
        mode, by = policy.forbidden_by()
        if mode == "error":
            command = f"sgljit cache build {build.family}{build.target.option}"
            ahead = f"with `{command}`, or " if build.family else ""
            remedy = f"Build it ahead: {ahead}by loading it once on a machine with compilers before freeze()."
            raise CompileForbiddenError(build.label, forbidden_by=by, why=str(self._explain()), remedy=remedy)
        level = logging.WARNING if mode == "warn" else logging.INFO
        if log.is_wanted(level):
            explanation = self._explain()
            log.log(level, "miss", str(explanation), build=build.label, differences=explanation.differences)

    def _no_toolchain(self) -> ToolchainNotFoundError:
        searched = ", ".join(str(t.root) for tiers in self._tiers() for t in tiers)
        broken = "".join(f"; {d.directory} was found and is damaged: {d.reason}" for d in self.damaged)
        try:
            self.request.find_tools(self.request.named.label)
        except ToolchainNotFoundError as error:
            near = self._explain()
            differs = f" {near}." if near.nearest is not None else ""
            return error.with_cache(f"No artifact of it was found in {searched}{broken}.{differs}")
        raise AssertionError("the toolchain came back")  # pragma: no cover

    def _make(self) -> T:
        """Make it in the root's staging area, or privately where the root takes no files."""
        root = self.request.root
        for damage in self.damaged:
            store.quarantine(damage, root)
        staging: Path | None = None
        try:
            with contextlib.suppress(OSError):
                store.collect(root)
            staging = store.staging_directory(root, self.request.build.module)
            return self._make_in(staging, publish=True)
        except CompileError as error:
            assert staging is not None
            if not _is_full(staging, error):
                raise
            reason = "no space left on its device"
        except OSError as error:
            if isinstance(error, SgljitError):
                raise
            reason = str(error.strerror)
        if staging is not None:
            store.discard(staging)
        return self._make_privately(reason)

    def _make_privately(self, reason: str) -> T:
        root = self.request.root
        text = (
            f"the cache {root} cannot be written ({reason}): what is compiled now serves this process alone. {_ENDED}"
        )
        log.once("cache_unwritable", str(root), text, root=str(root), reason=reason)
        scratch = trust.private_directory(paths.scratch_directory())
        store.collect(scratch)
        return self._make_in(store.staging_directory(scratch, self.request.build.module), publish=False)

    def _make_in(self, staging: Path, *, publish: bool) -> T:
        request = self.request
        start = time.perf_counter()
        try:
            with progress.announced(request.named):
                product = request.make(staging)
            payload = product.payload.read_bytes()
            manifest = self._manifest(product, payload, time.perf_counter() - start)
            loaded = request.load(payload)
            if not request.is_current():
                raise SourceChangedError(f"{request.named.label}: a source was written while it was compiled")
            if publish:
                self._publish(staging, manifest, payload)
        except (CompileError, ArtifactLoadError):
            store.keep_failed(staging)
            raise
        except BaseException:
            store.discard(staging)
            raise
        store.discard(staging)
        return loaded

    def _manifest(self, product: Product, payload: bytes, seconds: float) -> Manifest:
        request, build = self.request, self.request.named
        assert request.tools is not None
        return Manifest(
            payload=request.payload,
            size=len(payload),
            sha256=hashlib.sha256(payload).hexdigest(),
            build=build.label,
            target=build.target.name,
            family=build.family,
            module=build.module,
            markers=build.markers,
            plugin=build.plugin,
            core=__version__,
            command=product.command,
            seconds=round(seconds, 3),
            created=round(time.time(), 3),
            source=dict(request.source),
            toolchain=dict(request.tools),
            observed=dict(product.observed),
        )

    def _publish(self, staging: Path, manifest: Manifest, payload: bytes) -> None:
        root = self.request.root
        try:
            store.publish(staging, root, self.request.location, manifest, payload)
        except OSError as error:
            text = f"the cache {root} did not take an artifact ({error.strerror}); it serves this process alone"
            log.once("cache_unwritable", str(root), text, root=str(root), reason=str(error))


def _is_full(staging: Path, error: CompileError) -> bool:
    if "No space left on device" in error.log or "Disk quota exceeded" in error.log:
        return True
    try:
        (staging / "probe").write_bytes(bytes(1 << 16))
    except OSError as probe:
        return probe.errno in (errno.ENOSPC, errno.EDQUOT)
    return False


@contextmanager
def _locked(request: Request[T]) -> Iterator[None]:
    """Hold the lock of an artifact, if that is possible in time."""
    held: FileLock | None = None
    try:
        lock = FileLock(store.lock_path(request.root, request.location), request.named.label)
        held = lock if _wait(lock, request.named.label) else None
    except UntrustedCacheError:
        raise
    except OSError as error:  # no lock, no sharing of the work: that is all
        label = request.named.label
        text = f"{request.root} cannot be locked ({error.strerror}); building {label} unlocked"
        log.log(logging.INFO, "no_lock", text)
    try:
        yield
    finally:
        if held is not None:
            held.release()


def _wait(lock: FileLock, label: str) -> bool:
    """Wait for a lock: whether it is held now. Says for whom when it takes long."""
    if lock.try_acquire():
        return True
    reported = False
    with progress.showing(f"waiting for another process to compile {label}"):
        for seconds in back_off(LOCK_SECONDS):
            if lock.try_acquire():
                return True
            if not reported and seconds >= _REPORT_SECONDS:
                reported = True
                holder = lock.holder()
                text = f"waiting for {holder or 'another process'} to compile {label}"
                log.log(logging.WARNING, "waiting", text, build=label, holder=str(holder))
    text = (
        f"{lock.holder() or 'another process'} has held the lock of {label} for more than {LOCK_SECONDS:g} s; "
        f"compiling it here as well"
    )
    log.log(logging.WARNING, "lock_timeout", text, build=label)
    return False
