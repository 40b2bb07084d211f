"""Which artifacts does this process use, have from another rank, or hold leases of? Imports nothing: hooks ask it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_noting: list[Path] | None = None
leased: dict[str, Callable[[], object]] = {}  # by the source key of what is to be compiled here, what ends the lease
_roots: dict[str, Path] = {}  # by the place of an artifact that was handed over, the root that has it


@contextmanager
def noting() -> Iterator[list[Path]]:
    """The directories of the artifacts that are loaded while the block runs."""
    global _noting  # noqa: PLW0603 - a process has one set of hooks
    noted: list[Path] = []
    _noting = noted
    try:
        yield noted
    finally:
        _noting = None


def note(directory: Path) -> None:
    """An artifact was loaded."""
    if _noting is not None:
        _noting.append(directory)


def remember(place: str, root: Path) -> None:
    """An artifact was put below a root that is not looked in otherwise."""
    _roots[place] = root


def root_of(location: Path, toolchain_key: str | None) -> Path | None:
    """The root of an artifact that was handed over, of a toolchain or, without one, of any."""
    if not _roots:
        return None
    from .index import is_at

    return next((root for place, root in _roots.items() if is_at(place, location, toolchain_key)), None)
