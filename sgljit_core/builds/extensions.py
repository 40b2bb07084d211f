"""The questions of a build to installed plugins. The engine knows none: the package hands in an object that does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sgljit_core.model.build import BuildSpec


class Extensions:
    """The answers where nothing is installed."""

    def plugin_of(self, family: str) -> str:
        """The distribution and version that ship a family, for messages; "" where it is not known."""
        return ""

    def header_directories(self, name: str) -> list[Path]:
        """The include directories of a named header library.

        Raises:
            InvalidBuildError: nobody provides the name.
        """
        from sgljit_core.errors import InvalidBuildError

        raise InvalidBuildError(f"extra_dependencies: no installed plugin provides the headers {name!r}")

    def prebuilt_roots(self) -> list[Path]:
        """Directories of finished artifacts. They are as trusted as the code that names them."""
        return []

    def build_started(self, build: BuildSpec) -> None:
        """A compiler is about to run."""

    def build_finished(
        self, build: BuildSpec, seconds: float, error: BaseException | None, key: str, directory: Path, outcome: str
    ) -> None:
        """A compiler run has ended: "compiled", "private", "failed" or "interrupted"."""

    def loaded(self, build: BuildSpec, key: str, directory: Path, tier: str) -> None:
        """Code was loaded, from a tier of the cache or as it was made."""


_provider: Callable[[], Extensions] = Extensions


def provide(provider: Callable[[], Extensions]) -> None:
    """Say who answers. The provider is called at each question, so it keeps its object."""
    global _provider  # noqa: PLW0603 - one engine, one set of plugins, in a process
    _provider = provider


def extensions() -> Extensions:
    """Who answers."""
    return _provider()
