"""How is a request for code answered? Find it; else decide, lock, find it again, make it, load it, publish it.

What the code is does not matter here: a ``Recipe`` says how it is identified, made and loaded. A made payload is
loaded *before* it is published, so that nothing that does not load is ever visible to anybody else.

Nothing that goes wrong with the cache itself stops a build: a root that cannot be written, a full disk or a file
system without locks costs only the sharing, and is said once.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from sgljit_core import paths
from sgljit_core._version import __version__
from sgljit_core.cache import explain, keys, store
from sgljit_core.cache.manifest import Manifest, ManifestError
from sgljit_core.cache.store import Search, Slot, Tier
from sgljit_core.config import settings
from sgljit_core.errors import (
    ArtifactLoadError,
    CaptureError,
    CompileError,
    CompileForbiddenError,
    SourceChangedError,
    ToolchainNotFoundError,
    UntrustedCacheError,
)
from sgljit_core.families import discovery
from sgljit_core.machine import trust
from sgljit_core.machine.locks import FileLock
from sgljit_core.model.build import BuildSpec

from . import policy, progress

__all__ = ["Product", "Recipe", "obtain"]

T = TypeVar("T")

_POLL_SECONDS = 0.05
_REPORT_SECONDS = 2.0
_EXPLAINED = 64  # manifests that are read to explain a miss
_UNWRITABLE = {
    errno.ENOENT,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EIO,
}
_ENDED = "SGLJIT_CACHE_DIR names the cache; `sgljit cache build` fills it ahead of time"


@dataclass(frozen=True)
class Product:
    """What a recipe has made: the payload's file, the commands, and the files read that no key covers."""

    payload: Path
    command: str
    observed: Mapping[str, str]


@dataclass(frozen=True)
class Recipe(Generic[T]):
    """How a piece of code is identified, made and loaded.

    Attributes:
        build: what is asked for.
        source: the ingredients of the source key.
        payload: the name of the payload's file in an artifact.
        named: ``build`` with its plugin's name and version, for messages; finding them out takes a while.
        toolchain: the ingredients of the toolchain key; raises ToolchainNotFoundError. Its argument is the build.
        make: makes the payload in a directory.
        is_current: whether no source was written since ``source`` was computed.
        load: loads verified bytes; raises ArtifactLoadError.
        serves: whether this machine can run what another toolchain made; asked of what a plugin carries.
    """

    build: BuildSpec
    source: Mapping[str, str]
    payload: str
    named: Callable[[], BuildSpec]
    toolchain: Callable[[str], Mapping[str, str]]
    make: Callable[[BuildSpec, Path], Product]
    is_current: Callable[[], bool]
    load: Callable[[bytes], T]
    serves: Callable[[Mapping[str, str]], bool] = lambda toolchain: True

    @property
    def slot(self) -> Slot:
        build = self.build
        return Slot(build.target.name, build.family, build.module, keys.key(self.source))


def obtain(recipe: Recipe[T], root: Path) -> T:
    """The code of a recipe, from a tier or made now.

    Args:
        root: the writable tier.

    Raises:
        CompileForbiddenError, CaptureError: it must be made and may not be.
        ToolchainNotFoundError: it must be made and a compiler is missing.
        CompileError: it cannot be made.
        SourceChangedError: a source was written while it was being made; ask again with the new ingredients.
        UntrustedCacheError: a tier could have been written by somebody else.
    """
    return _Request(recipe, root).answer()


class _Request(Generic[T]):
    def __init__(self, recipe: Recipe[T], root: Path) -> None:
        self.recipe = recipe
        self.root = root
        self.slot = recipe.slot
        self.tools: Mapping[str, str] | None = None
        self.toolchain_key: str | None = None
        self.damaged: tuple[store.Damage, ...] = ()

    def answer(self) -> T:
        with contextlib.suppress(ToolchainNotFoundError):  # raised again, with the plugin's name, if it matters
            self.tools = self.recipe.toolchain(self.recipe.build.label)
            self.toolchain_key = keys.key(self.tools)
        for tiers in self._tiers():
            found = self._load(tiers)
            if found is not None:
                return found[0]
        build = self.recipe.named()
        self._check_allowed(build)
        if self.tools is None:  # what is damaged stays: the next process shall hear of it too
            raise self._no_toolchain(build)
        return self._make_once(build)

    def _tiers(self) -> Iterator[list[Tier]]:
        """The tiers in the order of the search; plugins, which take a while to ask, are asked last."""
        prebuilt = [Tier(directory.resolve()) for directory in settings().prebuilt]
        for tier in prebuilt:
            if not tier.root.is_dir():
                text = f"SGLJIT_PREBUILT_PATH names {tier.root}, which is not a directory"
                progress.once("prebuilt_missing", str(tier.root), text)
        carried = self.recipe.build.carried
        yield [*prebuilt, *([Tier(carried, vouched=True)] if carried else []), Tier(self.root)]
        vouched = [Tier(directory, vouched=True) for directory in discovery.prebuilt_directories()]
        if vouched:
            yield vouched

    def _load(self, tiers: Sequence[Tier]) -> tuple[T] | None:
        """Find and load. An artifact that is damaged or that this machine cannot load counts as none."""
        search = store.find(tiers, self.slot, self.toolchain_key, self.recipe.serves)
        self._note(search)
        artifact = search.artifact
        if policy.is_explaining():
            if artifact is not None:
                raise policy.Explained(policy.Explanation(self.recipe.named().label, self.slot, artifact.directory))
            return None
        if artifact is None:
            return None
        try:
            return (self.recipe.load(artifact.payload),)
        except ArtifactLoadError as error:
            progress.once("artifact_unusable", str(artifact.directory), f"{artifact.directory}: {error}")
            return None

    def _note(self, search: Search) -> None:
        self.damaged += tuple(damage for damage in search.damaged if damage not in self.damaged)
        for damage in search.damaged:
            progress.once(
                "artifact_damaged",
                str(damage.directory),
                f"{damage.directory} is damaged and not used: {damage.reason}",
                directory=str(damage.directory),
            )

    def _check_allowed(self, build: BuildSpec) -> None:
        mode, by = policy.forbidden_by()
        explanation = _explain(self.recipe, build, self.root, self.tools)
        if policy.is_explaining():
            raise policy.Explained(explanation)
        if policy.is_capturing():
            raise CaptureError(build.label, str(explanation))
        if mode == "error":
            command = f"sgljit cache build {build.family}{build.target.option}"
            ahead = f"with `{command}`, or " if build.family else ""
            remedy = f"Build it ahead: {ahead}by loading it once on a machine with compilers before freeze()."
            raise CompileForbiddenError(build.label, forbidden_by=by, why=str(explanation), remedy=remedy)
        level = logging.WARNING if mode == "warn" else logging.INFO
        progress.log(level, "miss", str(explanation), build=build.label, differences=explanation.differences)

    def _no_toolchain(self, build: BuildSpec) -> ToolchainNotFoundError:
        searched = ", ".join(str(t.root) for tiers in self._tiers() for t in tiers)
        broken = "".join(f"; {d.directory} was found and is damaged: {d.reason}" for d in self.damaged)
        try:
            self.recipe.toolchain(build.label)
        except ToolchainNotFoundError as error:
            near = _explain(self.recipe, build, self.root, None)
            differs = f" {near}." if near.nearest is not None else ""
            return error.with_cache(f"No artifact of it was found in {searched}{broken}.{differs}")
        raise AssertionError("the toolchain came back")  # pragma: no cover

    def _set_damaged_aside(self) -> None:
        for damage in self.damaged:
            store.quarantine(damage, self.root)

    def _make_once(self, build: BuildSpec) -> T:
        """Make it while holding its lock, unless another process makes it meanwhile."""
        assert self.toolchain_key is not None
        with _locked(self.root, self.slot, self.toolchain_key, build.label):
            found = self._load([Tier(self.root)])  # somebody may have published it since the first look
            if found is not None:
                return found[0]
            self._set_damaged_aside()
            with contextlib.suppress(OSError):
                store.collect(self.root)
            return self._make(build)

    def _make(self, build: BuildSpec) -> T:
        """Make it in the root's staging area, or privately where the root takes no files."""
        try:
            staging = store.staging_directory(self.root, build.module)
        except OSError as error:
            if error.errno not in _UNWRITABLE:
                raise
            return self._make_privately(build, f"{error.strerror}")
        try:
            return self._make_in(staging, build, publish=True)
        except OSError as error:
            if error.errno not in _UNWRITABLE or isinstance(error, UntrustedCacheError):
                raise
            store.discard(staging)
            return self._make_privately(build, f"{error.strerror}")
        except CompileError as error:
            if not _is_full(staging, error):
                raise
            store.discard(staging)
            return self._make_privately(build, "no space left on its device")

    def _make_privately(self, build: BuildSpec, reason: str) -> T:
        text = (
            f"the cache {self.root} cannot be written ({reason}): what is compiled now serves this process alone. "
            f"{_ENDED}"
        )
        progress.once("cache_unwritable", str(self.root), text, root=str(self.root), reason=reason)
        scratch = trust.private_directory(paths.scratch_directory())
        store.collect(scratch)
        return self._make_in(store.staging_directory(scratch, build.module), build, publish=False)

    def _make_in(self, staging: Path, build: BuildSpec, *, publish: bool) -> T:
        start = time.perf_counter()
        try:
            with progress.announced(build):
                product = self.recipe.make(build, staging)
            payload = product.payload.read_bytes()
            manifest = self._manifest(build, product, payload, time.perf_counter() - start)
            loaded = self.recipe.load(payload)
            if not self.recipe.is_current():
                raise SourceChangedError(f"{build.label}: a source was written while it was compiled")
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

    def _manifest(self, build: BuildSpec, product: Product, payload: bytes, seconds: float) -> Manifest:
        assert self.tools is not None
        return Manifest(
            payload=self.recipe.payload,
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
            source=dict(self.recipe.source),
            toolchain=dict(self.tools),
            observed=dict(product.observed),
        )

    def _publish(self, staging: Path, manifest: Manifest, payload: bytes) -> None:
        try:
            store.publish(staging, self.root, self.slot, manifest, payload)
        except OSError as error:
            text = f"the cache {self.root} did not take an artifact ({error.strerror}); it serves this process alone"
            progress.once("cache_unwritable", str(self.root), text, root=str(self.root), reason=str(error))


def _is_full(staging: Path, error: CompileError) -> bool:
    if "No space left on device" in error.log or "Disk quota exceeded" in error.log:
        return True
    try:
        (staging / "probe").write_bytes(bytes(1 << 16))
    except OSError as probe:
        return probe.errno in (errno.ENOSPC, errno.EDQUOT)
    return False


@contextmanager
def _locked(root: Path, slot: Slot, toolchain_key: str, label: str) -> Iterator[None]:
    """Hold the lock of an artifact, if that is possible in time."""
    lock: FileLock | None = None
    try:
        path = store.lock_path(root, slot, toolchain_key)
        lock = FileLock(path, label)
        if not _wait(lock, label):
            lock = None
    except UntrustedCacheError:
        raise
    except OSError as error:
        lock = None  # no lock, no sharing of the work: that is all
        progress.log(logging.INFO, "no_lock", f"{root} cannot be locked ({error.strerror}); building {label} unlocked")
    try:
        yield
    finally:
        if lock is not None:
            lock.release(remove=True)


def _wait(lock: FileLock, label: str) -> bool:
    """Wait for a lock: whether it is held now. Says for whom when it takes long."""
    if lock.try_acquire():
        return True
    start = time.monotonic()
    deadline = start + settings().lock_timeout
    reported = False
    with progress.showing(f"waiting for another process to compile {label}"):
        while time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            if lock.try_acquire():
                return True
            if not reported and time.monotonic() - start >= _REPORT_SECONDS:
                reported = True
                holder = lock.holder()
                text = f"waiting for {holder or 'another process'} to compile {label}"
                progress.log(logging.WARNING, "waiting", text, build=label, holder=str(holder))
    text = (
        f"{lock.holder() or 'another process'} has held the lock of {label} for more than "
        f"{settings().lock_timeout:g} s (SGLJIT_LOCK_TIMEOUT); compiling it here as well"
    )
    progress.log(logging.WARNING, "lock_timeout", text, build=label)
    return False


def _explain(recipe: Recipe[T], build: BuildSpec, root: Path, tools: Mapping[str, str] | None) -> policy.Explanation:
    """What sets a build apart from the nearest artifact of its module, in any tier."""
    carried = [build.carried] if build.carried else []
    tiers = [root, *settings().prebuilt, *carried, *discovery.prebuilt_directories()]
    best: tuple[int, int, Path, list[str]] | None = None
    for directory in _siblings(recipe.slot, tiers):
        try:
            manifest = store.read_manifest(directory)
        except (OSError, ManifestError):
            continue
        texts = explain.differences(recipe.source, tools or {}, manifest.source, manifest.toolchain)
        # Of two that differ as much, the one of the same variant tells more.
        rank = (len(texts), int(manifest.markers != build.markers))
        if best is None or rank < best[:2]:
            best = (*rank, directory, texts)
    if best is None:
        return policy.Explanation(build.label, recipe.slot, None, other_targets=_other_targets(recipe.slot, tiers))
    _, _, nearest, texts = best
    texts = texts or [store.fault(nearest, has_toolchain=tools is not None) or "nothing, but it does not load here"]
    return policy.Explanation(build.label, recipe.slot, None, nearest, tuple(texts))


def _other_targets(slot: Slot, roots: Sequence[Path]) -> tuple[str, ...]:
    """The targets that there are artifacts of the same module for."""
    module = slot.path.relative_to(slot.target).parent
    return tuple(
        sorted({path.name for root in roots for path in root.glob("[!.]*") if any(path.glob(f"{module}/*/*"))})
    )


def _siblings(slot: Slot, roots: Sequence[Path]) -> list[Path]:
    """The newest artifacts of the same module and target."""
    found = [path for root in roots for path in (root / slot.path.parent).glob("*/*") if path.is_dir()]
    with contextlib.suppress(OSError):
        found.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    return found[:_EXPLAINED]
