"""Looking artifacts up, and putting them in.

An artifact is a directory ``<root>/<target>/<family>/<module>/<source key>/<toolchain key>`` with ``manifest.json``
and the payload it names. It appears by one rename and is never changed, so readers take no lock. What readers get is
the payload's *bytes*, read once and verified: whatever happens to the file afterwards happens to somebody else.

Roots are searched in order, as tiers; only the last is written. Beside the targets a writable root holds hidden
directories: builds in progress (each named after its owner), locks, quarantined artifacts.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sgljit_core.machine import processes, trust

from .location import Location
from .manifest import FILE, Manifest, ManifestError

__all__ = [
    "Artifact",
    "Damage",
    "Search",
    "Tier",
    "artifact_directories",
    "collect",
    "discard",
    "fault",
    "find",
    "keep_failed",
    "lock_path",
    "publish",
    "quarantine",
    "read",
    "read_manifest",
    "settle",
    "staging_directory",
]

STAGING = ".staging"
QUARANTINE = ".quarantine"
LOCKS = ".locks"
_FAILED = "failed"
_KEPT_FAILED = 16
_KEPT_QUARANTINED = 8
_KEPT_SECONDS = 7 * 24 * 3600.0
_FOREIGN_SECONDS = 24 * 3600.0  # after that long, a build on another machine is taken to be over


@dataclass(frozen=True)
class Tier:
    """A root that artifacts are looked up in. ``vouched``: a plugin named it, so it is as trusted as that code."""

    root: Path
    vouched: bool = False


@dataclass(frozen=True)
class Artifact:
    """A verified artifact: its directory, its manifest and its payload's bytes."""

    directory: Path
    manifest: Manifest
    payload: bytes


@dataclass(frozen=True)
class Damage:
    """An artifact that is not what its manifest says."""

    directory: Path
    reason: str


@dataclass(frozen=True)
class Search:
    """What a look-up found: an artifact or None, and what was passed over because it is damaged."""

    artifact: Artifact | None
    damaged: tuple[Damage, ...] = ()


def find(
    tiers: Sequence[Tier],
    location: Location,
    toolchain_key: str | None,
    serves: Callable[[Mapping[str, str]], bool] = lambda toolchain: True,
) -> Search:
    """Look an artifact up.

    Args:
        toolchain_key: the key to match; None where there is no toolchain, and any artifact of the source serves. What
            a plugin carries serves whichever toolchain is here: its author compiled it to be used.
        serves: whether this machine can run what a toolchain made; asked of what a plugin carries.

    Raises:
        UntrustedCacheError: a tier or the artifact could have been written by somebody else.
    """
    damaged: list[Damage] = []
    for tier in tiers:
        if not tier.vouched:
            trust.check_root(tier.root)
        place = tier.root / location.path
        for name in _candidates(place, toolchain_key, only=not tier.vouched):
            try:
                artifact = read(place / name, vouched=tier.vouched)
            except ManifestError as error:
                damaged.append(Damage(place / name, str(error)))
                continue
            if artifact is None:
                continue
            if tier.vouched:
                usable = serves(artifact.manifest.toolchain)
            else:
                usable = _is_current(artifact.manifest, has_toolchain=toolchain_key is not None)
            if usable:
                return Search(artifact, tuple(damaged))
    return Search(None, tuple(damaged))


def _candidates(place: Path, toolchain_key: str | None, *, only: bool) -> Iterator[str]:
    """The artifacts of a source: that of the toolchain first, then, unless it is the ``only`` one, those of others."""
    if toolchain_key is not None:
        yield toolchain_key
    with contextlib.suppress(OSError):
        names = sorted(os.listdir(place))  # noqa: PTH208 - half the time of iterdir
        only = only and toolchain_key is not None
        yield from (n for n in names if not only or n.startswith(f"{toolchain_key}."))


def _is_current(manifest: Manifest, *, has_toolchain: bool) -> bool:
    """Whether the files that no key covers are those that the compiler read.

    Where they do not exist, a machine with a toolchain would compile something else, or nothing; one without a
    toolchain is not the machine that the artifact was built on, and has no need of them.
    """
    return not _changed(manifest, has_toolchain=has_toolchain)


def _changed(manifest: Manifest, *, has_toolchain: bool) -> str:
    """The first of these files that is another, and how; "" where none is."""
    for path, digest in manifest.observed.items():
        try:
            current = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        except OSError:
            if has_toolchain:
                return f"{path}, which the compiler read, is gone"
            continue
        if current != digest:
            return f"{path}, which the compiler read, changed"
    return ""


def fault(directory: Path, *, has_toolchain: bool) -> str:
    """What is wrong with an artifact of the very keys that were looked for; "" where nothing is."""
    try:
        artifact = read(directory, vouched=True)
    except ManifestError as error:
        return f"{directory} is damaged: {error}"
    return f"{directory} is gone" if artifact is None else _changed(artifact.manifest, has_toolchain=has_toolchain)


def read(directory: Path, *, vouched: bool = False) -> Artifact | None:
    """The artifact in a directory, verified; None where there is none.

    Raises:
        ManifestError: it is damaged.
        UntrustedCacheError: somebody else could have written it.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ESTALE:  # NFS: removed by another machine
            return None
        if error.errno == errno.ENOTDIR and not directory.parent.is_dir():  # the root itself is a file
            return None
        if error.errno == errno.EACCES:
            root = directory.parents[4]
            raise ManifestError(f"you may not read it; if its owner means you to: chmod -R a+rX {root}") from error
        if not vouched:
            trust.check(directory, directory.lstat())
        raise ManifestError(f"it is not a directory ({error.strerror})") from error
    try:
        if not vouched:
            trust.check(directory, os.fstat(descriptor))
        manifest = Manifest.parse(_content(descriptor, directory, FILE, vouched))
        if not directory.name.startswith(manifest.toolchain_key) or directory.parent.name != manifest.source_key:
            raise ManifestError("its manifest belongs to another artifact")
        if "/" in manifest.payload:
            raise ManifestError(f"its manifest names a payload elsewhere: {manifest.payload!r}")
        payload = _content(descriptor, directory, manifest.payload, vouched)
    finally:
        os.close(descriptor)
    if len(payload) != manifest.size:
        raise ManifestError(f"{manifest.payload} has {len(payload)} bytes, expected {manifest.size}")
    if hashlib.sha256(payload).hexdigest() != manifest.sha256:
        raise ManifestError(f"{manifest.payload} does not have the sha256 that its manifest says")
    return Artifact(directory, manifest, payload)


def read_manifest(directory: Path) -> Manifest:
    """The manifest in a directory, its payload unread.

    Raises:
        ManifestError: it is damaged.
        OSError: it cannot be read.
    """
    return Manifest.parse((directory / FILE).read_bytes())


def _content(directory: int, path: Path, name: str, vouched: bool) -> bytes:
    """A file of an open directory: a plain one, not a link, that nobody else can write."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        raise ManifestError(f"{name} cannot be opened ({error.strerror})") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ManifestError(f"{name} is not a plain file")
    with os.fdopen(descriptor, "rb") as file:
        if not vouched:
            trust.check(path / name, status)
        try:
            return file.read()
        except OSError as error:
            raise ManifestError(f"{name} cannot be read ({error.strerror})") from error


def lock_path(root: Path, location: Location) -> Path:
    """The file whose lock says that a process of this user builds an artifact. Makes its directory.

    Artifacts share 4096 files, so that none is ever removed. Two that meet in one wait for each other once in a while.

    Raises:
        OSError: the root cannot be written.
    """
    return _own_directory(root, LOCKS) / f"{location.source_key[:3]}.lock"


def staging_directory(root: Path, module: str) -> Path:
    """A new private directory to build in, on the file system of the cache. Its name says whose it is.

    Raises:
        OSError: the root cannot be written.
    """
    directory = _own_directory(root, STAGING) / f"{module}.{processes.current()}.{os.urandom(4).hex()}"
    directory.mkdir(mode=0o700)
    return directory


def _own_directory(root: Path, name: str) -> Path:
    trust.make_root(root)
    directory = root / name
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def keep_failed(staging: Path) -> None:
    """Keep the directory of a build that failed, for its author to look at; ``collect`` keeps the newest ones."""
    with contextlib.suppress(OSError):
        (staging / _FAILED).touch()


def discard(directory: Path) -> None:
    """Remove a directory as far as that is possible."""
    shutil.rmtree(directory, ignore_errors=True)


def publish(staging: Path, root: Path, location: Location, manifest: Manifest, payload: bytes) -> Path:
    """Move a build into its location, under its root. Of several processes that publish the same one, the first wins.

    Returns:
        The artifact's directory.

    Raises:
        OSError: the root cannot be written; nothing is visible then.
    """
    package = staging / "publish"
    package.mkdir(mode=0o700)
    _write(package / manifest.payload, payload)
    _write(package / FILE, manifest.dump())
    _sync(package)
    return settle(package, root / location.path / manifest.entry_name())


def settle(package: Path, destination: Path) -> Path:
    """Rename a complete directory to where it belongs; a whole artifact that is there already stays."""
    for _ in range(3):  # prune may remove the emptied parent in between; another may publish in between
        trust.make_directories(destination.parent)
        try:
            package.rename(destination)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            if _is_whole(destination):
                break
            _set_aside(destination)
            continue
        _sync(destination.parent)
        break
    return destination


def _is_whole(directory: Path) -> bool:
    try:
        return read(directory) is not None
    except ManifestError:
        return False


def _set_aside(directory: Path) -> Path:
    """Move an artifact into the quarantine of its root."""
    root = directory.parents[4]
    place = _own_directory(root, QUARANTINE) / f"{directory.parents[1].name}.{time.time_ns()}"
    directory.rename(place)
    os.utime(place)  # it is as old as its place here
    return place


def quarantine(damage: Damage, root: Path) -> Path | None:
    """Take a damaged artifact out of the writable root. Only the holder of its lock does it.

    Returns:
        Where it is now; None where it is in another tier, or cannot be moved.
    """
    if root not in damage.directory.parents:
        return None
    with contextlib.suppress(OSError):
        return _set_aside(damage.directory)
    return None


def collect(root: Path) -> int:
    """Remove what dead processes left behind in a writable root, and old things kept for people to look at.

    Returns:
        How many things were removed.
    """
    removed = 0
    kept: list[Path] = []
    for directory in _entries(root / STAGING):
        if (directory / _FAILED).exists():
            kept.append(directory)
        elif _is_abandoned(directory):
            discard(directory)
            removed += 1
    removed += _keep_newest(kept, _KEPT_FAILED)
    removed += _keep_newest(_entries(root / QUARANTINE), _KEPT_QUARANTINED)
    return removed


def _is_abandoned(directory: Path) -> bool:
    maker = processes.parse(directory.name.split(".")[-2]) if directory.name.count(".") >= 2 else None
    if maker is not None and processes.is_dead(maker):
        return True
    mine = maker is not None and maker.machine == processes.current().machine
    return not mine and _age(directory) > _FOREIGN_SECONDS


def _keep_newest(directories: Sequence[Path], count: int) -> int:
    by_age = sorted(directories, key=_age)
    gone = [d for i, d in enumerate(by_age) if i >= count or _age(d) > _KEPT_SECONDS]
    for directory in gone:
        discard(directory)
    return len(gone)


def _age(path: Path) -> float:
    with contextlib.suppress(OSError):
        return time.time() - path.stat().st_mtime
    return 0.0


def _entries(directory: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(directory.iterdir())
    return []


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # some file systems do not know it for directories
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def artifact_directories(root: Path) -> Iterator[Path]:
    """Every artifact's directory below a root, whole or not."""
    for target in _entries(root):
        if not target.name.startswith("."):
            yield from sorted(path for path in target.glob("*/*/*/*"))
