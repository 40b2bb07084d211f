"""How does a set of artifacts travel in one file? As a zip archive of their directories.

Nothing of it is trusted: only files with the names of an artifact are read, and no more than the limits below. Each
artifact is verified as one that is about to be loaded, and enters a root by the same rename.
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from functools import partial
from pathlib import Path

from sgljit_core import paths
from sgljit_core.cache import lookup, store
from sgljit_core.cache.manifest import FILE, ManifestError
from sgljit_core.errors import SgljitError
from sgljit_core.machine import roots
from sgljit_tools.errors import ArchiveError

from .admin import checked, failing_plainly, whole

_NAME = r"(?!\.)[\w.+-]{1,255}"  # what begins with a dot is hidden below a root; no file system takes longer names
_MEMBER = re.compile(
    rf"{_NAME}/\w{{1,255}}/{_NAME}/[0-9a-f]{{32}}/[0-9a-f]{{32}}(?:\.[0-9a-f]{{8}})?/{_NAME}", re.ASCII
)
_SIGNATURE = "signature"  # of the manifest, by `sgljit sign`; it stays beside it, for a directory of prebuilt ones
_READ = 1 << 16  # bytes at a time
_MEMBERS = 1 << 16
_IN_ALL = 64 << 30
_RATIO, _SLACK = 100, 16 << 20  # what a library shrinks to is far from a hundredth


@failing_plainly("the artifacts cannot be exported")
def export_archive(
    file: str | Path, directory: Path | None = None, *, family: str | None = None, target: str | None = None
) -> int:
    """Write the artifacts of a root into one file, those of one family or target if named. Returns their number.

    The same artifacts make the same file. Artifacts that are damaged or removed meanwhile, and directories that may not
    be listed, are left out, each with a warning. Where there are none, a file that was there stays.

    Raises ArchiveError: the file's suffix is not .zip.
    """
    file, root = Path(file), checked(directory)
    if file.suffix != ".zip":
        raise ArchiveError(f"{file}: the name of an archive ends in .zip")
    packed = sorted(whole(root, family, target), key=lambda artifact: artifact.directory)
    partial = file.parent.resolve(strict=True) / f".{file.name}.{os.urandom(8).hex()}"  # nobody can guess and link it
    try:
        with partial.open("xb") as opened, zipfile.ZipFile(opened, "w") as archive:
            for artifact in packed:
                place = artifact.directory.relative_to(root)
                for name, content in ((FILE, artifact.manifest.dump()), (artifact.manifest.payload, artifact.payload)):
                    # A ZipInfo of its own has no date.
                    archive.writestr(zipfile.ZipInfo(f"{place}/{name}"), content, zipfile.ZIP_DEFLATED)
        if packed:
            partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    return len(packed)


@failing_plainly("the archive cannot be imported")
def import_archive(file: str | Path, directory: Path | None = None) -> int:
    """Put the artifacts of an archive into a root, and count them. One that is there and whole already stays.

    Nothing of an archive that is refused enters.

    Raises:
        ArchiveError: the file is no archive of artifacts, or is damaged; or no key has signed it that is trusted.
    """
    file, root = Path(file), (directory or paths.cache_root()).absolute()
    staging = store.staging_directory(root, "import")
    try:
        with zipfile.ZipFile(file) as archive:
            places = _extract(archive, file, staging)
        for place in places:
            _verify(file, staging, place)
        for place in places:  # if one cannot be made, nothing enters
            roots.make(root, *place.parent.parts)
        for place in places:
            store.settle(staging / place, root, place)
    except (zipfile.BadZipFile, EOFError, RuntimeError, ValueError, zlib.error, OSError) as error:
        if isinstance(error, SgljitError) or getattr(error, "errno", None) is not None:
            raise
        raise ArchiveError(f"{file} is no archive of artifacts, or is damaged: {error}") from error
    finally:
        store.discard(staging)
    return len(places)


def _extract(archive: zipfile.ZipFile, file: Path, staging: Path) -> list[Path]:
    """Write the files of an archive below a directory; the directories of its artifacts."""
    if len(archive.infolist()) > _MEMBERS:
        raise ArchiveError(f"{file} holds more than {_MEMBERS} files")
    members = [member for member in archive.infolist() if not member.is_dir()]
    # No more of a file is read than its header says.
    if sum(member.file_size for member in members) > min(_IN_ALL, _RATIO * file.stat().st_size + _SLACK):
        raise ArchiveError(f"{file} holds far more than it can: more than {_RATIO} times its own size")
    for member in members:
        is_plain = member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if not is_plain or not _MEMBER.fullmatch(member.filename):
            raise ArchiveError(f"{file} holds {member.filename!r}, which is no file of an artifact")
        if member.file_size > lookup.LARGEST:
            raise ArchiveError(f"{file}: {member.filename} claims {member.file_size} bytes")
        place = staging / member.filename
        if place.exists():
            raise ArchiveError(f"{file} holds {member.filename} twice")
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        roots.share(place.parent)
        with archive.open(member) as content:
            store.write(place, iter(partial(content.read, _READ), b""))
    return sorted({Path(member.filename).parent for member in members})


def _verify(file: Path, staging: Path, place: Path) -> None:
    try:
        artifact = lookup.Tier(staging, vouched=True, name="prebuilt").read(staging / place)
    except ManifestError as error:
        raise ArchiveError(f"{file}: {place} is damaged: {error}") from error
    if artifact is None:
        is_there = (staging / place / FILE).is_file()
        reason = "no key of SGLJIT_TRUSTED_KEYS has signed it" if is_there else "it is not there"
        raise ArchiveError(f"{file}: {place} is not used: {reason}")
    manifest = artifact.manifest
    extra = {path.name for path in artifact.directory.iterdir()} - {FILE, manifest.payload, _SIGNATURE}
    if manifest.location.path / manifest.entry_name() != place or extra:
        raise ArchiveError(f"{file}: {place} is not what its manifest says")
