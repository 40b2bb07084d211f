"""How does a set of artifacts travel in one file?

A tar archive (compressed by its suffix: .tar, .tar.gz, .tar.xz) of artifact directories as they lie below a root.
Nothing of it is trusted: only plain files with the names of an artifact are read, and no more of them than fits the
limits below. Each artifact is verified like one that is about to be loaded, and enters a root by the same rename.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import IO, BinaryIO, Literal, cast

from sgljit_core.cache import lookup, store
from sgljit_core.cache.manifest import FILE, ManifestError
from sgljit_core.errors import SgljitError
from sgljit_core.machine import roots
from sgljit_tools.errors import ArchiveError

_NAME = r"(?!\.)[\w.+-]{1,255}"  # what begins with a dot is hidden below a root; no file system takes longer names
_MEMBER = re.compile(
    rf"{_NAME}/\w{{1,255}}/{_NAME}/[0-9a-f]{{32}}/[0-9a-f]{{32}}(?:\.[0-9a-f]{{8}})?/{_NAME}", re.ASCII
)
_MODES: dict[str, Literal["w", "w:gz", "w:xz"]] = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz", ".tar.xz": "w:xz"}
_READ = 1 << 16  # the bytes of content at a time, and those that all headers of one member may take
_MEMBERS = 1 << 16
_IN_ALL = 64 << 30
_RATIO, _SLACK = 100, 16 << 20  # what a library shrinks to is far from a hundredth


def pack(file: Path, artifacts: Iterable[lookup.Artifact], root: Path) -> int:
    """Write artifacts of a root into an archive; returns their number. The same artifacts make the same tar."""
    mode, packed = _mode(file), sorted(artifacts, key=lambda artifact: artifact.directory)
    partial = file.with_name(f".{file.name}.{os.urandom(8).hex()}")  # nobody can guess it and make a link of it first
    try:
        with partial.open("xb") as opened, tarfile.open(fileobj=opened, mode=mode) as archive:
            for artifact in packed:
                place = artifact.directory.relative_to(root)
                for name, content in ((FILE, artifact.manifest.dump()), (artifact.manifest.payload, artifact.payload)):
                    member = tarfile.TarInfo(f"{place}/{name}")
                    member.size = len(content)
                    member.mode = 0o600
                    archive.addfile(member, io.BytesIO(content))
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    return len(packed)


def unpack(file: Path, root: Path) -> int:
    """Put the artifacts of an archive into a root; returns their number. One that is there and whole already stays.

    Nothing of an archive that is refused enters.
    """
    staging = store.staging_directory(root, "import")
    try:
        with file.open("rb") as packed, _Reader(packed, file) as reader:
            places = _extract(reader, file, staging)
        for place in places:
            _verify(file, staging / place)
        for place in places:  # if one cannot be made, nothing enters
            roots.make(root, *place.parent.parts)
        for place in places:
            store.settle(staging / place, root, place)
    except (tarfile.TarError, EOFError, ValueError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, SgljitError) or getattr(error, "errno", None) is not None:
            raise
        raise ArchiveError(f"{file} is no archive of artifacts, or is damaged: {error}") from error
    finally:
        store.discard(staging)
    return len(places)


def _mode(file: Path) -> Literal["w", "w:gz", "w:xz"]:
    for suffix in filter(file.name.endswith, _MODES):
        return _MODES[suffix]
    raise ArchiveError(f"{file}: the name of an archive ends in one of {', '.join(_MODES)}")


class _Reader(io.RawIOBase):
    """The content of an archive. It raises before it reads more than is allowed.

    Attributes:
        allowed: the bytes that may be read until somebody allows more.
    """

    def __init__(self, packed: BinaryIO, file: Path) -> None:
        magic = packed.read(2)
        packed.seek(0)
        kinds: dict[bytes, Callable[[BinaryIO], object]] = {b"\x1f\x8b": gzip.open, b"\xfd7": lzma.open}
        self._content = cast(BinaryIO, kinds[magic](packed) if magic in kinds else packed)
        self._file = file
        self._left = min(_IN_ALL, _RATIO * os.fstat(packed.fileno()).st_size + _SLACK)
        self.allowed = _READ

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= self.allowed:
            raise ArchiveError(f"{self._file} holds a header of more than {_READ} bytes")
        self._left -= size
        if self._left < 0:
            raise ArchiveError(f"{self._file} holds far more than it can: more than {_RATIO} times its own size")
        self.allowed -= size
        return self._content.read(size)

    def seek(self, position: int, whence: int = 0) -> int:
        return self._content.seek(position, whence)

    def tell(self) -> int:
        return self._content.tell()


def _extract(reader: _Reader, file: Path, staging: Path) -> list[Path]:
    """Write the files of an archive below a directory; the directories of its artifacts."""
    names: set[str] = set()
    with tarfile.open(fileobj=reader, mode="r:") as archive:
        for count, member in enumerate(iter(archive.next, None)):
            archive.members.clear()  # type: ignore[attr-defined]  # the headers of all would fill the memory
            if count >= _MEMBERS or archive.pax_headers:
                raise ArchiveError(f"{file} holds more than {_MEMBERS} files, or headers for all of them")
            reader.allowed = _READ
            if member.isdir():
                continue
            if member.type not in tarfile.REGULAR_TYPES or member.issparse() or not _MEMBER.fullmatch(member.name):
                raise ArchiveError(f"{file} holds {member.name!r}, which is no file of an artifact")
            if not 0 <= member.size <= lookup.LARGEST:
                raise ArchiveError(f"{file}: {member.name} claims {member.size} bytes")
            if member.name in names:
                raise ArchiveError(f"{file} holds {member.name} twice")
            names.add(member.name)
            place = staging / member.name
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            roots.share(place.parent)
            reader.allowed = member.size + _READ  # a buffer may read ahead
            content = cast(IO[bytes], archive.extractfile(member))
            store.write(place, iter(partial(content.read, _READ), b""))
            reader.allowed = _READ
        end = archive.offset
    # tarfile takes the end of a file for the end of an archive, too.
    reader.seek(end)
    reader.allowed = tarfile.BLOCKSIZE
    if reader.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
        raise ArchiveError(f"{file} is no archive of artifacts, or is damaged: it has no end")
    return sorted({Path(name).parent for name in names})


def _verify(file: Path, directory: Path) -> None:
    try:
        artifact = lookup.read(directory)
    except ManifestError as error:
        raise ArchiveError(f"{file}: {'/'.join(directory.parts[-5:])} is damaged: {error}") from error
    if artifact is None:
        raise ArchiveError(f"{file}: {directory.name} is not there")
    manifest = artifact.manifest
    claimed = (manifest.target, manifest.family or "_", manifest.module, manifest.source_key, manifest.entry_name())
    extra = {path.name for path in directory.iterdir()} - {FILE, manifest.payload}
    if claimed != directory.parts[-5:] or extra:
        raise ArchiveError(f"{file}: {'/'.join(directory.parts[-5:])} is not what its manifest says")
