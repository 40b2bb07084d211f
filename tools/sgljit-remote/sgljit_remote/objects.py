"""What is in an object of a remote? A zip archive of artifacts: one, or many.

Each artifact is three files in a directory with the path that it has below a root: its manifest, its payload and, if
somebody signed it, the signature of the manifest. Nothing of an object is trusted. Names are compared and never used as
paths, no more is unpacked than fits the limits below, and each artifact is verified by itself: one that is refused
hides no other.
"""

from __future__ import annotations

import hashlib
import io
import re
import struct
import sys
import zipfile
import zlib
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sgljit_core.cache.lookup import LARGEST
from sgljit_core.cache.manifest import FILE, Manifest, ManifestError

from .errors import RefusedObjectError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from .signing import TrustedKey

SIGNATURE = "signature"
_NAME = r"(?!\.)[\w.+-]{1,255}"
PLACE = rf"{_NAME}/\w{{1,255}}/{_NAME}/[0-9a-f]{{32}}/[0-9a-f]{{32}}(?:\.[0-9a-f]{{8}})?"
_MEMBER = re.compile(rf"({PLACE})/({_NAME})", re.ASCII)
_MEMBERS = 1 << 16
_LARGEST_MANIFEST = 16 << 20
_RATIO, _SLACK = 100, 16 << 20  # what a library shrinks to is far from a hundredth
_DATE = (1980, 1, 1, 0, 0, 0)  # the same artifacts make the same object
# Names are ASCII. Unless it is told, the library imports a codec of code page 437 for them.
_IN_ASCII: dict[str, Any] = {"metadata_encoding": "ascii"} if sys.version_info >= (3, 11) else {}


class Artifact(NamedTuple):
    """An artifact on its way: its manifest and its payload's bytes."""

    manifest: Manifest
    payload: bytes

    @property
    def place(self) -> str:
        """The path of its directory below a root."""
        return (self.manifest.location.path / self.manifest.entry_name()).as_posix()


class Unpacked(NamedTuple):
    """The verified artifacts of an object, and why others were refused, by their places."""

    artifacts: tuple[Artifact, ...]
    refused: dict[str, str]


def pack(artifacts: Iterable[Artifact], key: Ed25519PrivateKey | None) -> bytes:
    """The object of some artifacts, signed with a key if there is one."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for artifact in sorted(artifacts, key=lambda artifact: artifact.place):
            text = artifact.manifest.dump()
            members = {FILE: text, artifact.manifest.payload: artifact.payload}
            if key is not None:
                from . import signing  # imports cryptography, which nothing else needs

                members[SIGNATURE] = signing.sign(text, key)
            for name, content in members.items():
                member = zipfile.ZipInfo(f"{artifact.place}/{name}", _DATE)
                archive.writestr(member, content, zipfile.ZIP_DEFLATED)
    return written.getvalue()


def joined(content: bytes, other: bytes, places: Collection[str]) -> bytes:
    """An object and, as they are in another one, the artifacts of some places, which were verified there.

    They keep their signatures: whoever joins them does not vouch for them.
    """
    written = io.BytesIO(content)
    with zipfile.ZipFile(written, "a") as archive, zipfile.ZipFile(io.BytesIO(other), **_IN_ASCII) as source:
        for place, members in _by_place(source, len(other)).items():
            for member in members.values() if place in places else ():
                archive.writestr(zipfile.ZipInfo(member.filename, _DATE), source.read(member), zipfile.ZIP_DEFLATED)
    return written.getvalue()


def unpack(content: bytes, trusted: Sequence[TrustedKey]) -> Unpacked:
    """The artifacts of an object.

    Args:
        trusted: the keys, one of which must have signed each artifact; without any, no signature is asked for.

    Raises:
        RefusedObjectError: it is no such object as a whole.
    """
    found, refused = [], {}
    try:
        with zipfile.ZipFile(io.BytesIO(content), **_IN_ASCII) as archive:
            for place, members in _by_place(archive, len(content)).items():
                try:
                    found.append(_verified(archive, place, members, trusted))
                except BROKEN as error:  # noqa: PERF203 - an artifact for itself
                    refused[place] = str(error)
    except RefusedObjectError:
        raise
    except BROKEN as error:
        raise RefusedObjectError(f"it is no archive of artifacts, or is damaged: {error}") from error
    return Unpacked(tuple(found), refused)


def too_much(content: bytes) -> str:
    """Why each machine would refuse an object that was packed here, of too many or too large files; "" if none does."""
    with zipfile.ZipFile(io.BytesIO(content), **_IN_ASCII) as archive:
        try:
            _by_place(archive, len(content))
        except RefusedObjectError as error:
            return str(error)
    return ""


# The ways in which the library says that an archive is broken; a RefusedObjectError is a ValueError.
BROKEN = (zipfile.BadZipFile, EOFError, OSError, OverflowError, RuntimeError, ValueError, struct.error, zlib.error)


def _by_place(archive: zipfile.ZipFile, size: int) -> dict[str, dict[str, zipfile.ZipInfo]]:
    """The members of an archive by the artifact and by their names."""
    members = archive.infolist()
    if len(members) > _MEMBERS:
        raise RefusedObjectError(f"it holds more than {_MEMBERS} files")
    whole = sum(member.file_size for member in members)
    if whole > LARGEST:
        most = f"the {LARGEST} that one archive may have: make several, such as one of each family"
        raise RefusedObjectError(f"its files have {whole} bytes, more than {most}")
    if whole > _RATIO * size + _SLACK:
        raise RefusedObjectError(f"it holds far more than it can: more than {_RATIO} times its own size")
    found: dict[str, dict[str, zipfile.ZipInfo]] = {}
    for member in members:
        named = _MEMBER.fullmatch(member.filename)
        if named is None or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise RefusedObjectError(f"it holds {member.filename!r}, which is no file of an artifact")
        if named[2] in found.setdefault(named[1], {}):
            raise RefusedObjectError(f"it holds {member.filename!r} twice")
        found[named[1]][named[2]] = member
    return found


def _verified(
    archive: zipfile.ZipFile, place: str, members: dict[str, zipfile.ZipInfo], trusted: Sequence[TrustedKey]
) -> Artifact:
    if FILE not in members or members[FILE].file_size > _LARGEST_MANIFEST:
        raise RefusedObjectError(f"it has no {FILE}, or a very large one")
    text = archive.read(members[FILE])
    if trusted:
        from . import signing

        signing.check(text, archive.read(members[SIGNATURE]) if SIGNATURE in members else None, trusted)
    try:
        manifest = Manifest.parse(text)
    except ManifestError as error:
        raise RefusedObjectError(str(error)) from error
    artifact = Artifact(manifest, b"")
    if artifact.place != place:
        raise RefusedObjectError(f"its manifest is that of another artifact, {artifact.place}")
    if manifest.payload in (FILE, SIGNATURE) or set(members) - {FILE, SIGNATURE} != {manifest.payload}:
        raise RefusedObjectError(f"it has other files than its manifest says: {', '.join(sorted(members))}")
    payload = archive.read(members[manifest.payload])
    if len(payload) != manifest.size or hashlib.sha256(payload).hexdigest() != manifest.sha256:
        raise RefusedObjectError(f"{manifest.payload} is not the one that its manifest says")
    return Artifact(manifest, payload)


def object_name(location: Path, toolchain_key: str | None) -> str:
    """The name of the object of one artifact. ``any`` is one of any toolchain, for machines that have none."""
    return f"{PREFIX}/{location.as_posix()}/{toolchain_key or 'any'}.zip"


PREFIX = "sgljit-1"  # of all names; raised with the format of objects
