"""How a request for code is answered: find it in a tier of the cache, where a warm start ends, or else have it made."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from sgljit_core import errors, log, paths
from sgljit_core.cache import lookup
from sgljit_core.cache.keys import Location
from sgljit_core.cache.lookup import Search, Tier
from sgljit_core.config import settings
from sgljit_core.machine.forks import OncePerKey
from sgljit_core.plugins import hooks

from . import policy, record
from .request import Request

T = TypeVar("T")

_ATTEMPTS = 5
_MARK_SECONDS = 24 * 3600.0  # a use is noted at most that often, so that hits stay cheap


def obtain(ask: Callable[[], Request[T]], kept: OncePerKey[tuple[Path, Location], T] | None = None) -> T:
    """The code that a request asks for, from a tier or made now. Raises as ``load_jit`` does.

    ``ask`` makes the request: again, up to five times in all, as long as sources are written while they are compiled.
    ``kept`` holds what this process has obtained already.

    Raises SourceChangedError where they were written each time, and ResourceError for an OSError of ``SHORTAGES``.
    """
    try:
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(errors.SourceChangedError):
                return _obtain(ask(), kept)
        return _obtain(ask(), kept)
    except OSError as error:
        if isinstance(error, errors.SgljitError) or error.errno not in errors.SHORTAGES:
            raise
        raise errors.ResourceError("a kernel cannot be looked for or made", error) from error


def _obtain(request: Request[T], kept: OncePerKey[tuple[Path, Location], T] | None) -> T:
    if kept is not None and not policy.explaining.get():
        return kept.get((request.root, request.location), lambda: _obtain(request, None))
    finder = Finder(request)
    if (found := finder.find()) is not None:
        return found[0]
    from .making import make_once  # a warm start needs nothing that decides, locks, compiles or publishes

    return make_once(finder)


class Finder(Generic[T]):
    """The search for what one request asks for. ``damaged`` has the damaged artifacts that were met on the way."""

    def __init__(self, request: Request[T]) -> None:
        self.request = request
        self.damaged: dict[Path, str] = {}  # as those of a ``Search``

    def find(self) -> tuple[T] | None:
        """Look in all tiers."""
        request = self.request
        for tiers in self.tiers():
            if (found := self.find_in(*tiers)) is not None:
                return found
        tiers = self.all_tiers()
        found = self._load(lookup.find_of_another_core(tiers, request.location, request.source, request.serves))
        if found is None and policy.may_fetch():
            fetched = hooks.fetched(request.location.path, request.toolchain_key, request.root)
            found = self.find_in(*(Tier(root, name="remote") for root in fetched))
        return found

    def find_in(self, *tiers: Tier) -> tuple[T] | None:
        """Look in these tiers alone, such as the writable root: somebody may have published it since the first look."""
        request = self.request
        return self._load(lookup.find(tiers, request.location, request.toolchain_key, request.serves))

    def tiers(self) -> Iterator[list[Tier]]:
        """The tiers in the order of the search; plugins, which take a while to ask, are asked last."""
        prebuilt = []
        for root in settings().prebuilt:
            if os.path.isdir(root):  # noqa: PTH112 - it raises nothing, also below a closed directory
                prebuilt.append(Tier(root, name="prebuilt"))
            else:
                log.once("prebuilt_missing", str(root), f"SGLJIT_PREBUILT_PATH names {root}, which is not a directory")
        build = self.request.build
        carried = paths.carried_artifacts(build.csrc) if build.family else None
        yield [*prebuilt, *([Tier(carried, True, "carried")] if carried else []), Tier(self.request.root)]
        yield [Tier(directory, True, "plugin") for directory in hooks.prebuilt_roots()]

    def all_tiers(self) -> list[Tier]:
        """The tiers in the order of the search, those of plugins too."""
        return [tier for tiers in self.tiers() for tier in tiers]

    def _load(self, search: Search) -> tuple[T] | None:
        """Load what was found. An artifact that is damaged or that this machine cannot load counts as none."""
        request = self.request
        self.damaged |= search.damaged
        for place, reason in search.damaged.items():
            text = f"{place} is damaged and not used: {reason}"
            record.survived("artifact_damaged", str(place), text, directory=str(place))
        for tier, error in search.unreadable:
            if isinstance(error, errors.UntrustedCacheError):
                record.unusable(tier.root, error)
                continue
            text = f"{tier.root} cannot be read ({error.strerror}): its artifacts are looked for elsewhere, or compiled"
            event = "cache_unwritable" if tier.root == self.request.root else "tier_unreadable"  # one warning for each
            record.survived(event, str(tier.root), text, root=str(tier.root), reason=str(error))
        artifact = search.artifact
        if artifact is None or search.tier is None:
            return None
        if policy.explaining.get():
            from sgljit_core.cache.explain import Explanation  # a warm start asks no questions

            raise policy.Explained(Explanation(request.named.label, request.location, artifact.directory))
        try:
            code = request.load(artifact.payload, request.name)
        except errors.ArtifactLoadError as error:
            record.survived("artifact_unusable", str(artifact.directory), f"{artifact.directory}: {error}")
            return None
        if search.tier.root == request.root:
            with contextlib.suppress(OSError):  # where the time of its directory cannot be written
                if time.time() - os.stat(artifact.directory).st_mtime > _MARK_SECONDS:  # noqa: PTH116 - a warm start
                    os.utime(artifact.directory)
        record.loaded(request, artifact.directory, search.tier.name)
        return (code,)
