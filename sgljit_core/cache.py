"""Where is the artifact, and how does one get in?

An artifact is a directory ``<root>/<target>/<family>/<module>/<source key>/<toolchain key>`` with ``module.so`` and
``manifest.json``. It appears by one rename and is never changed, so readers take no lock.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Artifact", "Manifest", "Slot", "find", "publish", "staging_directory"]

_LIBRARY = "module.so"
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Slot:
    """Where a build's artifacts live: one directory for each toolchain below it."""

    root: Path
    target: str
    family: str
    module: str
    source_key: str

    @property
    def directory(self) -> Path:
        return self.root / self.target / (self.family or "_") / self.module / self.source_key


@dataclass(frozen=True)
class Manifest:
    """What is known of an artifact: enough to verify it, and to tell why another build differs."""

    build: str
    size: int
    sha256: str
    command: str
    seconds: float
    source: Mapping[str, str]
    toolchain: Mapping[str, str]


@dataclass(frozen=True)
class Artifact:
    """A verified artifact."""

    library: Path
    manifest: Manifest


def find(slot: Slot, toolchain_key: str | None) -> Artifact | None:
    """The artifact of a slot, verified; None where there is none that is whole.

    Args:
        toolchain_key: the key to match; None where there is no toolchain, and any artifact of the source serves.
    """
    if toolchain_key is not None:
        return _read(slot.directory / toolchain_key)
    if not slot.directory.is_dir():
        return None
    candidates = (_read(directory) for directory in sorted(slot.directory.iterdir()))
    return next((artifact for artifact in candidates if artifact is not None), None)


def staging_directory(root: Path, name: str) -> Path:
    """A new private directory to build in, on the file system of the cache."""
    parent = root / ".staging"
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))


def publish(
    library: Path,
    slot: Slot,
    toolchain_key: str,
    *,
    build: str,
    command: str,
    seconds: float,
    source: Mapping[str, str],
    toolchain: Mapping[str, str],
) -> Artifact:
    """Move a built library into its slot. Of several processes that publish the same one, the first wins."""
    manifest = Manifest(build, library.stat().st_size, _sha256(library), command, seconds, source, toolchain)
    package = library.parent / "publish"
    package.mkdir()
    library.rename(package / _LIBRARY)
    (package / _MANIFEST).write_text(json.dumps(asdict(manifest), indent=1))
    _sync(package / _LIBRARY, package / _MANIFEST, package)
    destination = slot.directory / toolchain_key
    destination.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        package.rename(destination)
    except OSError:
        if _read(destination) is None:  # not another's good artifact: a broken one, which this one replaces
            shutil.rmtree(destination)
            package.rename(destination)
    _sync(destination.parent)
    return Artifact(destination / _LIBRARY, manifest)


def _read(directory: Path) -> Artifact | None:
    """The artifact in a directory, if size and hash are what its manifest says."""
    library = directory / _LIBRARY
    try:
        manifest = Manifest(**json.loads((directory / _MANIFEST).read_text()))
        if library.stat().st_size != manifest.size or _sha256(library) != manifest.sha256:
            return None
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return None
    return Artifact(library, manifest)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _sync(*paths: Path) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
