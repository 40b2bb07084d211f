"""How a request for code is answered: find it in a tier of the cache, or have it made (``making``).

Only this half runs on a warm start, so it imports nothing that decides, locks, compiles or publishes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from sgljit_core import log
from sgljit_core.cache import lookup
from sgljit_core.cache.lookup import Damage, Tier
from sgljit_core.config import settings
from sgljit_core.errors import ArtifactLoadError, SourceChangedError

from . import policy
from .extensions import extensions
from .request import Request

T = TypeVar("T")

_ATTEMPTS = 5


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
    finder = Finder(request)
    found = finder.find()
    if found is not None:
        return found[0]
    from .making import make_once

    return make_once(finder)


class Finder(Generic[T]):
    """The search for what one request asks for.

    Attributes:
        damaged: the damaged artifacts that were met on the way.
    """

    def __init__(self, request: Request[T]) -> None:
        self.request = request
        self.damaged: tuple[Damage, ...] = ()

    def find(self) -> tuple[T] | None:
        """Look in all tiers."""
        for tiers in self.tiers():
            found = self._load(tiers)
            if found is not None:
                return found
        return None

    def find_again(self) -> tuple[T] | None:
        """Look in the writable root alone: somebody may have published it since the first look."""
        return self._load([Tier(self.request.root)])

    def tiers(self) -> Iterator[list[Tier]]:
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
        search = lookup.find(tiers, request.location, request.toolchain_key, request.serves)
        self._note(search.damaged)
        artifact = search.artifact
        if artifact is None:
            return None
        if policy.is_explaining():
            raise policy.hit(request.named.label, request.location, artifact.directory)
        try:
            return (request.load(artifact.payload),)
        except ArtifactLoadError as error:
            log.once("artifact_unusable", str(artifact.directory), f"{artifact.directory}: {error}")
            return None

    def _note(self, damaged: Sequence[Damage]) -> None:
        self.damaged += tuple(damage for damage in damaged if damage not in self.damaged)
        for damage in damaged:
            text = f"{damage.directory} is damaged and not used: {damage.reason}"
            log.once("artifact_damaged", str(damage.directory), text, directory=str(damage.directory))
