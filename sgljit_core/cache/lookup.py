"""Looking artifacts up, and reading them.

Readers get the payload's *bytes*, read once and verified, so later changes of the file do not matter to them. Roots
are searched in order, as tiers.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sgljit_core.config import is_chosen, settings
from sgljit_core.errors import UntrustedCacheError
from sgljit_core.machine import trust

from . import keys
from .keys import Location, without_core
from .manifest import FILE, Manifest, ManifestError

LARGEST = 2 << 30  # the bytes of a file that is read
_LARGEST_MANIFEST = 64 << 20
_READING = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Tier(NamedTuple):
    """A root that artifacts are looked up in, by its name in records; ``vouched`` if a plugin named it."""

    root: Path
    vouched: bool = False
    name: str = "cache"

    def read(self, directory: Path) -> Artifact | None:
        """An artifact of this tier, as ``read`` does. With ``SGLJIT_TRUSTED_KEYS`` others must have signed theirs."""
        artifact = read(directory, None if self.vouched else self.root)
        if artifact is not None and self.name in ("prebuilt", "carried", "plugin") and settings().must_be_signed:
            try:
                if not importlib.import_module("sgljit_remote.carried").accepts(directory, artifact.manifest):
                    return None
            except ModuleNotFoundError as error:
                raise ManifestError(f"SGLJIT_TRUSTED_KEYS needs sgljit-remote: {error}") from error
        return artifact


class Artifact(NamedTuple):
    """A verified artifact: its directory, its manifest and its payload's bytes."""

    directory: Path
    manifest: Manifest
    payload: bytes


class Search(NamedTuple):
    """The result of a look-up: the artifact and its tier, or None, and what was passed over.

    ``damaged`` are directories of artifacts that are not what their manifests say, each with the reason. ``unreadable``
    are tiers, each with the error: they cannot be read now, or another user could have written them and no setting
    names them.
    """

    artifact: Artifact | None
    tier: Tier | None
    damaged: dict[Path, str]
    unreadable: tuple[tuple[Tier, OSError], ...]


def find(
    tiers: Sequence[Tier],
    location: Location,
    toolchain_key: str | None,
    serves: Callable[[Mapping[str, str]], bool] = lambda toolchain: True,
) -> Search:
    """Look an artifact up.

    Args:
        toolchain_key: the key to match; None where there is no toolchain, and any artifact of the source serves. An
            artifact that a plugin carries serves beside any toolchain: its author compiled it to be used.
        serves: whether this machine can run what a toolchain made; asked of what a plugin carries.

    Raises:
        UntrustedCacheError: a tier or the artifact could have been written by somebody else.
    """

    def candidates(tier: Tier, damaged: dict[Path, str]) -> Iterator[Artifact]:
        place = tier.root / location.path
        for name in _names(place, toolchain_key, only=not tier.vouched):
            try:
                artifact = tier.read(place / name)
            except ManifestError as error:
                damaged[place / name] = str(error)
                continue
            if artifact is None:
                continue
            manifest, has_toolchain = artifact.manifest, toolchain_key is not None
            if serves(manifest.toolchain) if tier.vouched else not _changed(manifest, has_toolchain=has_toolchain):
                yield artifact

    return _first(tiers, candidates)


def find_of_another_core(
    tiers: Sequence[Tier], location: Location, source: Mapping[str, str], serves: Callable[[Mapping[str, str]], bool]
) -> Search:
    """Look for an artifact of the same sources that a plugin carries, compiled with another release of the core.

    The plugin's author has compiled and tested it so, and the core keeps what such code relies on within one ABI
    (``keys.ABI``). An artifact that somebody else compiled serves for the very same text only. So only tiers that a
    plugin vouches for count. ``source`` are the ingredients of the source key.
    """
    wanted = without_core(source)

    def candidates(tier: Tier, damaged: dict[Path, str]) -> Iterator[Artifact]:
        for directory in sorted((tier.root / location.path.parent).glob("*/*")):
            try:
                manifest = read_manifest(directory)
                usable = without_core(manifest.source) == wanted and serves(manifest.toolchain)
                if usable and (artifact := tier.read(directory)) is not None:
                    yield artifact
            except ManifestError as error:  # noqa: PERF203 - a damaged artifact hides no other
                damaged[directory] = str(error)

    return _first([tier for tier in tiers if tier.vouched], candidates)


def _first(tiers: Sequence[Tier], candidates: Callable[[Tier, dict[Path, str]], Iterator[Artifact]]) -> Search:
    """The first candidate of any tier. ``candidates`` adds the damaged artifacts that it meets to its dictionary."""
    damaged: dict[Path, str] = {}
    unreadable: list[tuple[Tier, OSError]] = []
    for tier in tiers:
        try:
            for artifact in candidates(tier, damaged):
                return Search(artifact, tier, damaged, tuple(unreadable))
        except OSError as error:  # noqa: PERF203 - a tier for itself
            if isinstance(error, UntrustedCacheError) and is_chosen(tier.root):
                raise
            unreadable.append((tier, error))
    return Search(None, None, damaged, tuple(unreadable))


def _names(place: Path, toolchain_key: str | None, *, only: bool) -> Iterator[str]:
    """The artifacts of a source: first that of the toolchain, then those of others, unless ``only`` leaves them out."""
    if toolchain_key is not None:
        yield toolchain_key
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        names = sorted(os.listdir(place))  # noqa: PTH208 - half the time of iterdir
        only = only and toolchain_key is not None
        yield from (n for n in names if not only or n.startswith(f"{toolchain_key}."))


def _changed(manifest: Manifest, *, has_toolchain: bool) -> str:
    """How the first file changed that the compiler read and no key covers; "" if none has changed.

    A missing file counts as a change only with a toolchain: a machine without one did not build the artifact, and needs
    none of the files.
    """
    for path, digest in manifest.observed.items():
        try:
            current = _hash(path)
        except OSError:
            if has_toolchain:
                return f"{path}, which the compiler read, is gone"
            continue
        if current != digest:
            return f"{path}, which the compiler read, changed"
    return ""


def _hash(path: str) -> str:
    """The sha256 of a plain file; "" for a device and its kind, which could be read for ever."""
    with open(os.open(path, _READING), "rb") as file:  # noqa: PTH123
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
            return ""
        return hashlib.sha256(file.read(status.st_size + 1) or b"").hexdigest()


def fault(directory: Path, *, has_toolchain: bool) -> str:
    """Why an artifact of exactly the wanted keys does not serve; "" if nothing is wrong with it."""
    try:
        artifact = read(directory)
    except (ManifestError, OSError) as error:
        return f"{directory} is damaged: {error}"
    return f"{directory} is gone" if artifact is None else _changed(artifact.manifest, has_toolchain=has_toolchain)


def read(directory: Path, root: Path | None = None) -> Artifact | None:
    """The artifact in a directory, verified; None where there is none.

    Args:
        root: the root that it lies below, if only the user and root may have written it, to every directory on the way
            and to its files; None where somebody vouches for it.

    Raises:
        ManifestError: it is damaged.
        UntrustedCacheError: somebody else could have written it.
        OSError: it cannot be read now.
    """
    try:
        descriptor = _open(directory, root)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):  # NFS: removed by another machine
            return None
        if error.errno == errno.ENOTDIR and not os.path.isdir(directory.parent):  # noqa: PTH112 - it raises nothing
            return None  # the root itself is a file
        if error.errno == errno.EACCES:
            error.strerror = f"you may not read it. Its owner can allow it: chmod -R a+rX {directory.parents[4]}"
        raise
    try:
        manifest = Manifest.parse(_content(descriptor, directory, FILE, is_checked=root is not None))
        if keys.keys_of(manifest.source, manifest.toolchain) != (directory.parent.name, directory.name[:32]):
            raise ManifestError("its manifest belongs to another artifact")
        if "/" in manifest.payload:
            raise ManifestError(f"its manifest names a payload elsewhere: {manifest.payload!r}")
        payload = _content(descriptor, directory, manifest.payload, is_checked=root is not None)
    finally:
        os.close(descriptor)
    if len(payload) != manifest.size:
        raise ManifestError(f"{manifest.payload} has {len(payload)} bytes, expected {manifest.size}")
    if hashlib.sha256(payload).hexdigest() != manifest.sha256:
        raise ManifestError(f"{manifest.payload} does not have the sha256 that its manifest says")
    return Artifact(directory, manifest, payload)


def _open(directory: Path, root: Path | None) -> int:
    """An artifact's directory, opened from its root if that is to be checked."""
    if root is None:
        return _open_artifact(directory, directory, None)
    with trust.directory(root, *directory.parent.relative_to(root).parts) as parent:
        descriptor = _open_artifact(directory, directory.name, parent)
    try:
        trust.check_file(directory, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _open_artifact(directory: Path, path: Path | str, parent: int | None) -> int:
    """Open an artifact's directory by its path in an open one. Raises ManifestError where something else is there."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP) or not os.path.isdir(directory.parent):  # noqa: PTH112
            raise
        if parent is not None:
            trust.check_file(directory, os.stat(path, dir_fd=parent, follow_symlinks=False))
        raise ManifestError(f"it is not a directory ({error.strerror})") from error


def read_manifest(directory: Path, root: Path | None = None) -> Manifest:
    """The manifest in a directory, its payload unread. ``root``, ManifestError and OSError are as for ``read``."""
    descriptor = _open(directory, root)
    try:
        return Manifest.parse(_content(descriptor, directory, FILE, is_checked=root is not None))
    finally:
        os.close(descriptor)


def _content(directory: int, path: Path, name: str, *, is_checked: bool) -> bytes:
    """A file of an open directory: a plain file, not a link, that only its owner can write."""
    try:
        descriptor = os.open(name, _READING | os.O_NOFOLLOW, dir_fd=directory)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENXIO):  # it may pass
            raise
        raise ManifestError(f"{name} cannot be opened ({error.strerror})") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ManifestError(f"{name} is not a plain file")
        if status.st_size > (_LARGEST_MANIFEST if name == FILE else LARGEST):
            raise ManifestError(f"{name} has {status.st_size} bytes, which is too much")
        if is_checked:
            trust.check_file(path / name, status)
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)
