"""The operations on a cache, for operators and for the command line: list, verify, prune, copy; more in ``archive``.

Each works on one root, by default the user's own. One that does not exist is a FileNotFoundError, one that others could
have written an UntrustedCacheError. To write to a directory of somebody else's files is a NotACacheError.
"""

from __future__ import annotations

import contextlib
import errno
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sgljit_core import log, paths
from sgljit_core.cache import lookup, store
from sgljit_core.cache.explain import Explanation
from sgljit_core.cache.manifest import Manifest, ManifestError
from sgljit_core.errors import SgljitError, StorageError, UntrustedCacheError
from sgljit_core.machine import roots

_SOURCE_KEY = re.compile(r"[0-9a-f]{32}")
_ENTRY = re.compile(r"[0-9a-f]{32}(\.[0-9a-f]{8})?")  # see Manifest.entry_name


@dataclass(frozen=True)
class Entry:
    """One artifact.

    Attributes:
        directory: where it is.
        manifest: what is known of it; None where the manifest cannot be read.
        size: the bytes it takes.
        built: when, in seconds since 1970.
        used: when it was last used, to within a day.
        problem: what is wrong with it; "" where nothing is known to be.
    """

    directory: Path
    manifest: Manifest | None
    size: int
    built: float
    used: float
    problem: str = ""


class Pruned(NamedTuple):
    """The artifacts and files that were removed from a cache, or would be.

    Attributes:
        artifacts: the artifacts.
        leftovers: what killed builds left, and what was kept beside artifacts for long enough: files and directories.
    """

    artifacts: list[Entry]
    leftovers: list[Path]


@contextlib.contextmanager
def failing_plainly(failure: str) -> Iterator[None]:
    """Decorates an operation: errors of the file system are StorageErrors, which begin with ``failure``."""
    try:
        yield
    except OSError as error:
        if error.errno in (None, errno.ENOENT):  # it says already what is wrong
            raise
        remedy = "Name another that you may read and write, or let its owner give you access"
        raise StorageError(f"{failure}: {error}. {remedy}") from error


root = paths.cache_root


@failing_plainly("the cache cannot be listed")
def entries(directory: Path | None = None, *, vouched: bool = False) -> list[Entry]:
    """The artifacts below a root, by their manifests; payloads are not read (``verify`` does).

    Args:
        vouched: the root is as trusted as the plugin that carries it, so it does not matter who can write it.
    """
    place = checked(directory, vouched=vouched)
    return [_entry(path, None if vouched else place) for path in _artifact_directories(place)]


@failing_plainly("the cache cannot be read")
def verify(directory: Path | None = None, *, vouched: bool = False) -> list[Entry]:
    """The artifacts of ``entries`` that are damaged, found by reading everything. Changes nothing."""
    place = checked(directory, vouched=vouched)
    root = None if vouched else place
    return [_entry(path, root, said) for path in _artifact_directories(place) if (said := _problem(path, root))]


def _problem(path: Path, root: Path | None, *, unreadable: bool = True) -> str:
    """The problem of an artifact; "" if there is none. ``unreadable``: it is one if the artifact cannot be read now."""
    try:
        lookup.read(path, root)
    except ManifestError as error:
        return str(error)
    except SgljitError as error:  # somebody else could have written it
        return str(error) if unreadable else ""
    except OSError as error:
        return f"it cannot be read ({error.strerror})" if unreadable else ""
    return ""


@failing_plainly("the cache cannot be pruned")
def prune(
    directory: Path | None = None,
    *,
    older_than: float | None = None,
    larger_than: int | None = None,
    keep: Iterable[Explanation] | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Remove artifacts, damaged ones in any case, and what dead processes left behind.

    Safe while others use the cache: what is loaded is in memory, and what is missing is built again.

    Args:
        older_than: seconds; removes what was built longer ago.
        larger_than: bytes; removes what was used longest ago until the rest takes no more.
        keep: answers of ``why``; of each family and target that is among them, removes every other source key, such
            as those of sources that were edited since.
        dry_run: changes nothing.
    """
    place = checked(directory)
    if not place.exists():  # the user's own, before its first artifact
        return Pruned([], [])
    roots.check_is_cache(place)
    leftovers = store.leftovers(place) if dry_run else store.collect(place)
    broken = {path for path in _artifact_directories(place) if _problem(path, place, unreadable=False)}
    wanted: dict[tuple[str, str], set[str]] = {}
    for answer in keep or ():
        wanted.setdefault(_owner(answer.location.path), set()).add(answer.source_key)
    gone: list[Entry] = []
    rest: list[Entry] = []
    for entry in sorted(entries(place), key=lambda e: e.used):
        source_key = entry.directory.parent.name
        stale = source_key not in wanted.get(_owner(entry.directory.parent), {source_key})
        old = older_than is not None and time.time() - entry.built > older_than
        (gone if stale or old or entry.directory in broken else rest).append(entry)
    size = sum(entry.size for entry in rest)
    while larger_than is not None and rest and size > larger_than:
        size -= rest[0].size
        gone.append(rest.pop(0))
    for entry in gone:
        if not dry_run:
            store.remove(entry.directory, place)
    return Pruned(gone, leftovers)


@failing_plainly("the artifacts cannot be copied")
def copy(into: Path, directory: Path | None = None, *, family: str | None = None) -> int:
    """Copy artifacts of one root into another, and count them. One that is there and whole already stays."""
    count = 0
    for artifact in whole(checked(directory), family):
        staging = store.staging_directory(into, "copy")
        try:
            store.publish(staging, into, artifact.manifest.location, artifact.manifest, artifact.payload)
        finally:
            store.discard(staging)
        count += 1
    return count


def _artifact_directories(root: Path, closed: Callable[[Path], object] = lambda _: None) -> list[Path]:
    """Every artifact's directory below a root, whole or not; ``closed`` gets each that may not be listed.

    Nothing else is listed: callers remove what is, and a user may have named a directory of his own. Raises OSError.
    """
    places = [path for path in _children(root) if not path.name.startswith(".")]
    for _ in range(3):
        places = [path for place in places for path in _children(place, closed)]
    keys = [path for path in places if _SOURCE_KEY.fullmatch(path.name)]
    return [path for key in keys for path in _children(key, closed) if _ENTRY.fullmatch(path.name)]


def _children(directory: Path, closed: Callable[[Path], object] | None = None) -> list[Path]:
    """The directories in a directory, without links; none in one that is gone. ``closed`` gets one that is closed."""
    try:
        return sorted(path for path in directory.iterdir() if path.is_dir() and not path.is_symlink())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError:
        if closed is None:
            raise
        closed(directory)
        return []


def _owner(place: Path) -> tuple[str, str]:
    """Target and family of the directory of a source key."""
    return place.parents[2].name, place.parents[1].name


def checked(directory: Path | None, *, vouched: bool = False) -> Path:
    """The root of an operation. Raises as the module says."""
    own = paths.cache_root().absolute()
    place = (directory or own).absolute()
    if place != own and not place.is_dir():  # the user's own appears with the first artifact
        raise FileNotFoundError(f"{place} is not a directory, so there are no artifacts in it")
    if not vouched:
        roots.check(place)
    return place


def whole(place: Path, family: str | None, target: str | None = None) -> Iterator[lookup.Artifact]:
    """The artifacts below a root, of one family or target if named; one that is damaged is left out, with a warning."""
    for path in _artifact_directories(place, _left_out):
        if target not in (None, path.parents[3].name) or family not in (None, path.parents[2].name):
            continue
        try:
            artifact = lookup.read(path, place)
        except (ManifestError, UntrustedCacheError) as error:
            _left_out(path, f"{path} is damaged and left out: {error}")
            continue
        if artifact is None:
            _left_out(path, f"{path} is left out: it was removed while the cache was read")
        else:
            yield artifact


def _left_out(directory: Path, text: str = "") -> None:
    text = text or f"{directory} may not be listed, and the artifacts below it are left out"
    log.once("artifact_damaged", str(directory), text, directory=str(directory))


def _entry(path: Path, root: Path | None, problem: str = "") -> Entry:
    manifest, size, used = None, 0, 0.0
    try:
        used = path.stat().st_mtime
        size = sum(file.lstat().st_size for file in path.iterdir())
        manifest = lookup.read_manifest(path, root)
    except (OSError, ManifestError) as error:
        problem = problem or str(error)
    return Entry(path, manifest, size, manifest.created if manifest else used, used, problem)
