"""How does a set of artifacts travel in one file?

A tar archive (compressed by its suffix: .tar, .tar.gz, .tar.xz) of artifact directories as they lie below a root.
Nothing of it is trusted: only plain files with the names of an artifact are read, each artifact is verified like one
that is about to be loaded, and it enters a root by the same rename.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from sgljit_core.errors import ArchiveError
from sgljit_core.machine import trust

from . import lookup, store
from .manifest import FILE, Manifest, ManifestError

_MEMBER = re.compile(r"[\w.+-]+/\w+/[\w.+-]+/[0-9a-f]{32}/[0-9a-f]{32}(?:\.[0-9a-f]{8})?/[\w.+-]+")
_MODES: dict[str, Literal["w", "w:gz", "w:xz"]] = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz", ".tar.xz": "w:xz"}
_LARGEST = 4 << 30


def pack(file: Path, artifacts: Iterable[lookup.Artifact], root: Path) -> int:
    """Write artifacts of a root into an archive; returns their number. The same artifacts make the same tar.

    Raises:
        ArchiveError: the suffix is none of those known.
    """
    count = 0
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with _open_for_writing(partial, _mode(file)) as archive:
            for artifact in sorted(artifacts, key=lambda a: a.directory):
                place = artifact.directory.relative_to(root)
                for name, content in ((FILE, artifact.manifest.dump()), (artifact.manifest.payload, artifact.payload)):
                    member = tarfile.TarInfo(f"{place}/{name}")
                    member.size = len(content)
                    member.mode = 0o600
                    archive.addfile(member, io.BytesIO(content))
                count += 1
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    return count


def unpack(file: Path, root: Path) -> int:
    """Put the artifacts of an archive into a root; returns their number. One that is there and whole already stays.

    Raises:
        ArchiveError: the file is no archive of artifacts; nothing of a refused artifact enters the root.
        UntrustedCacheError: the root could have been written by somebody else.
    """
    trust.check_root(root)
    staging = store.staging_directory(root, "import")
    try:
        with tarfile.open(file) as archive:
            places = _extract(archive, file, staging)
        for place in places:
            _verify(file, staging / place)
        for place in places:
            store.settle(staging / place, root / place)
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, tarfile.TarError | EOFError) or error.errno is None:
            raise ArchiveError(f"{file} is no archive of artifacts, or is damaged: {error}") from error
        raise
    finally:
        store.discard(staging)
    return len(places)


def _mode(file: Path) -> Literal["w", "w:gz", "w:xz"]:
    for suffix, mode in _MODES.items():
        if file.name.endswith(suffix):
            return mode
    raise ArchiveError(f"{file}: the name of an archive ends in one of {', '.join(_MODES)}")


def _open_for_writing(file: Path, mode: Literal["w", "w:gz", "w:xz"]) -> tarfile.TarFile:
    if mode == "w":
        return tarfile.open(file, "w")
    return tarfile.open(file, "w:gz") if mode == "w:gz" else tarfile.open(file, "w:xz")


def _extract(archive: tarfile.TarFile, file: Path, staging: Path) -> list[Path]:
    places: dict[Path, None] = {}
    for member in archive:
        if member.isdir():
            continue
        if not member.isreg() or not _MEMBER.fullmatch(member.name) or ".." in member.name.split("/"):
            raise ArchiveError(f"{file} holds {member.name!r}, which is no file of an artifact")
        if member.size > _LARGEST:
            raise ArchiveError(f"{file}: {member.name} claims {member.size} bytes")
        content = archive.extractfile(member)
        assert content is not None
        path = staging / member.name
        trust.make_directories(path.parent)
        with content, os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            while chunk := content.read(1 << 20):
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
        places[Path(member.name).parent] = None
    return list(places)


def _verify(file: Path, directory: Path) -> None:
    try:
        artifact = lookup.read(directory)
    except ManifestError as error:
        raise ArchiveError(f"{file}: {'/'.join(directory.parts[-5:])} is damaged: {error}") from error
    if artifact is None:
        raise ArchiveError(f"{file}: {directory.name} is not there")
    manifest: Manifest = artifact.manifest
    claimed = (manifest.target, manifest.family or "_", manifest.module, manifest.source_key, manifest.entry_name())
    extra = {path.name for path in directory.iterdir()} - {FILE, manifest.payload}
    if claimed != directory.parts[-5:] or extra:
        raise ArchiveError(f"{file}: {'/'.join(directory.parts[-5:])} is not what its manifest says")
