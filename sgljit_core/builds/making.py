"""A request that no tier answers: decide, lock, look again, make it, load it, publish it.

A made payload is loaded *before* it is published, so that nothing that does not load is ever visible to anybody else.

Nothing that goes wrong with the cache itself stops a build: a root that cannot be written, a full disk or a file
system without locks costs only the sharing, and is said once.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sgljit_core import errors, log
from sgljit_core._version import __version__
from sgljit_core.cache import store
from sgljit_core.cache.explain import Explanation, explain_miss
from sgljit_core.cache.lookup import Tier
from sgljit_core.cache.manifest import Manifest, ManifestError
from sgljit_core.config import is_chosen
from sgljit_core.machine import private
from sgljit_core.machine.locks import FileLock, back_off
from sgljit_core.specs.build import Product

from . import policy, record
from .request import Request

if TYPE_CHECKING:
    from .obtain import Finder

T = TypeVar("T")

LOCK_SECONDS = 300.0  # after which somebody else's build is no longer waited for
_REPORT_SECONDS = 2.0


def make_once(finder: Finder[T]) -> T:
    """Make what a search did not find, unless another process makes it meanwhile. Raises as ``obtain`` does."""
    request = finder.request
    _check_allowed(finder)
    if request.tools is None:  # damaged artifacts stay: the next process shall hear about them too
        raise _no_toolchain(finder)
    with contextlib.ExitStack() as held:
        for _ in _until_locked(request, held):
            if (found := finder.find_in(Tier(request.root))) is not None:
                return found[0]
        with record.announced(request.named, request.location.source_key, request.root) as run:
            return _make(request, run)


def _explain(finder: Finder[T]) -> Explanation:
    """The differences between a request and the nearest artifact, in any tier. It reads many manifests."""
    request = finder.request
    label, markers = request.named.label, request.build.markers
    try:
        found = explain_miss(label, markers, request.location, request.source, request.tools, finder.all_tiers())
    except (OSError, ManifestError):  # an answer only says why; nothing depends on it
        found = Explanation(label, request.location, None)
    return found._replace(toolchain_key=request.toolchain_key)


def _check_allowed(finder: Finder[T]) -> None:
    """Count a miss. Raise where nothing may be compiled now; else log why something will be."""
    if policy.explaining.get():  # a question is no miss
        raise policy.Explained(_explain(finder))
    record.missed(finder.request)
    build = finder.request.named
    if policy.is_capturing():
        raise errors.CaptureError(build.label, str(_explain(finder)))
    mode, by = policy.forbidden_by()
    if mode == "error":
        command = f"sgljit cache build {build.family}"
        if build.target.cuda_arch or build.target.is_rocm:
            command += f" --cuda-arch {build.target.name}"
        ahead = f"with `{command}`, or " if build.family else ""
        remedy = f"Build it ahead: {ahead}by loading it once on a machine with compilers before freeze()."
        raise errors.CompileForbiddenError(build.label, forbidden_by=by, why=str(_explain(finder)), remedy=remedy)
    level = logging.WARNING if mode == "warn" else logging.INFO
    if log.LOGGER.isEnabledFor(level):
        explanation = _explain(finder)
        log.log(level, "miss", str(explanation), build=build.label, differences=explanation.differences)


def _no_toolchain(finder: Finder[T]) -> errors.ToolchainNotFoundError:
    request = finder.request
    searched = ", ".join(str(tier.root) for tier in finder.all_tiers())
    broken = "".join(f"; {place} was found and is damaged: {reason}" for place, reason in finder.damaged.items())
    try:
        request.find_tools(request.named.label)
    except errors.ToolchainNotFoundError as error:
        near = _explain(finder)
        differs = f" {near}." if near.nearest is not None else ""
        error.cache = f"No artifact of it was found in {searched}{broken}.{differs}"
        return error
    raise AssertionError("the toolchain came back")  # pragma: no cover


def _make(request: Request[T], run: record.Run) -> T:
    """Make it in the root's staging area, or in the directory of this process where the root takes no files."""
    root = request.root
    try:
        return _make_twice(request, run, publish=True)
    except (errors.UntrustedCacheError, errors.NotACacheError) as error:
        if is_chosen(root):
            raise
        reason = str(error)
        record.unusable(root, error)
    except errors.SgljitError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        text = (
            f"the cache {root} cannot be written ({reason}): what is compiled now serves this process alone. "
            f"SGLJIT_CACHE_DIR names the cache; `sgljit cache build` fills it ahead of time"
        )
        record.unwritable(root, text, reason)
    try:
        return _make_twice(request, run, publish=False)
    except errors.SgljitError:
        raise
    except OSError as error:
        raise errors.StorageError(
            f"{request.named.label} cannot be compiled for lack of a directory: {root} cannot be written ({reason}), "
            f"nor can one for temporary files ({error.strerror or error}).\nMake room, or let SGLJIT_CACHE_DIR or "
            f"TMPDIR name a directory of yours that takes files"
        ) from error


def _make_twice(request: Request[T], run: record.Run, *, publish: bool) -> T:
    """Make it in a new directory; in another, once, if somebody removes that meanwhile. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        return _make_in(_staging(request, publish=publish), request, run, publish=publish)
    return _make_in(_staging(request, publish=publish), request, run, publish=publish)


def _staging(request: Request[T], *, publish: bool) -> Path:
    """A new directory: below the root for what is published there, else in that of this process."""
    module = request.build.module
    if publish:
        directory = store.staging_directory(request.root, module)
        store.collect(request.root)
        return directory
    try:
        return Path(tempfile.mkdtemp(prefix=f"{module}.", dir=private.process_directory()))
    except errors.UntrustedCacheError as error:
        raise PermissionError(errno.EACCES, str(error)) from error


def _make_in(staging: Path, request: Request[T], run: record.Run, *, publish: bool) -> T:
    run.directory = staging
    start = time.perf_counter()
    try:
        product = request.make(staging)
        payload = product.payload.read_bytes()
        manifest = _manifest(request, product, payload, time.perf_counter() - start)
        loaded = request.load(payload, request.name)
        if not request.scan.is_current():
            raise errors.SourceChangedError(f"{request.named.label}: a source was written while it was compiled")
        published = _publish(staging, request, manifest, payload) if publish else None
        if published is None:
            run.outcome = "private"
    except (errors.CompileError, errors.ArtifactLoadError) as error:
        if isinstance(error, errors.CompileError):
            _check_room(staging)
        with contextlib.suppress(OSError):
            (staging / store.FAILED).touch()
        raise
    except BaseException:
        store.discard(staging)
        raise
    store.discard(staging)
    run.directory = published or staging
    record.loaded(request, run.directory, "made")
    return loaded


def _manifest(request: Request[T], product: Product, payload: bytes, seconds: float) -> Manifest:
    build = request.named
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
        resources=dict(product.resources),
    )


def _publish(staging: Path, request: Request[T], manifest: Manifest, payload: bytes) -> Path | None:
    """The artifact's directory; None where the root did not take it."""
    root = request.root
    try:
        return store.publish(staging, root, request.location, manifest, payload)
    except OSError as error:
        reason = error.strerror or str(error)
        text = f"the cache {root} did not take an artifact ({reason}); it serves this process alone"
        record.unwritable(root, text, reason)
        return None


def _check_room(staging: Path) -> None:
    """Raise OSError where a compiler failed because its directory is gone or full: that is no fault of the source."""
    probe = staging / "probe"
    try:
        probe.write_bytes(bytes(1 << 16))
        probe.unlink()
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        error.strerror = "no space left on its device" if full else error.strerror
        store.discard(staging)
        raise


def _until_locked(request: Request[T], held: contextlib.ExitStack) -> Iterator[None]:
    """Take the lock of an artifact, if that is possible in time; ``held`` gives it back.

    The caller looks for the artifact after each attempt, whether or not it got the lock: see architecture.md.
    """
    label = request.named.label
    try:
        lock = FileLock(store.lock_path(request.root, request.location), label)
        held.callback(lock.release)
        yield from _attempts(lock, label)
        return
    except (errors.UntrustedCacheError, errors.NotACacheError):
        if is_chosen(request.root):
            raise
    except OSError as error:  # no lock, no sharing of the work: that is all
        text = f"{request.root} cannot be locked ({error.strerror or error}); building {label} unlocked"
        log.log(logging.INFO, "no_lock", text)
    yield


def _attempts(lock: FileLock, label: str) -> Iterator[None]:
    """Try to take a lock until it is held or ``LOCK_SECONDS`` are over. Says for whom it waits when it takes long."""
    reported = False
    for seconds in back_off(LOCK_SECONDS):
        is_held = lock.try_acquire()
        yield
        if is_held:
            return
        if not reported and seconds >= _REPORT_SECONDS:
            reported = True
            holder = lock.holder()
            text = f"waiting for {holder}, which holds the lock of {label}"
            log.log(logging.WARNING, "waiting", text, build=label, holder=holder)
    holder = lock.holder()
    text = f"{holder} has held the lock of {label} for more than {LOCK_SECONDS:g} s; compiling it here as well"
    log.log(logging.WARNING, "lock_timeout", text, build=label, holder=holder)
