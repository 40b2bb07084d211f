"""Whose code do wheels carry, and directories of prebuilt artifacts? With ``SGLJIT_TRUSTED_KEYS`` it must be signed.

The file ``signature`` beside a manifest is the one that an object of a remote has. The core asks ``accepts`` before it
loads what somebody else compiled. Code that a user compiled is in that user's cache, and needs no signature.
"""

from __future__ import annotations

import base64
import csv
import functools
import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sgljit_core.cache import lookup
from sgljit_core.cache.manifest import FILE, Manifest
from sgljit_core.errors import SgljitError

from . import config, objects, owned, signing
from .counts import refuse
from .errors import RefusedObjectError
from .objects import SIGNATURE

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from .signing import TrustedKey

_ENTRIES = "*/*/*/" + "[0-9a-f]" * 32 + "/*/" + FILE
_CARRIED = "/prebuilt/"
_SIZE = 64


def accepts(directory: Path, manifest: Manifest) -> bool:
    """Whether a trusted key has signed a verified artifact; if not, a warning says why."""
    try:
        signing.check(manifest.dump(), _signature(directory), _trusted(config.trusted_keys()))
    except SgljitError as error:
        refuse(str(directory.parent), directory.name, str(error))
        return False
    return True


@functools.lru_cache(maxsize=4)
def _trusted(places: tuple[Path, ...]) -> tuple[TrustedKey, ...]:
    """The keys, read once in a process."""
    return signing.public_keys(places)


def _signature(directory: Path) -> bytes | None:
    try:
        descriptor = os.open(directory / SIGNATURE, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return os.read(descriptor, _SIZE + 1)  # a file object does not close the descriptor of a directory
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RefusedObjectError(f"its signature cannot be read ({error.strerror})") from error


def sign_directory(root: Path, key: Ed25519PrivateKey) -> int:
    """Sign the artifacts below a directory of prebuilt ones, each beside its manifest; returns their number.

    Raises:
        ManifestError: one is damaged. The ones before it are signed.
        OSError: the directory takes no files.
    """
    places = [path.parent for path in sorted(root.glob(_ENTRIES))]
    for place in places:
        artifact = lookup.read(place)
        if artifact is None:  # it was removed meanwhile
            continue
        with owned.replaced(place / SIGNATURE) as written:
            written.write_bytes(signing.sign(artifact.manifest.dump(), key))
            written.chmod((place / FILE).stat().st_mode & 0o777)
    return len(places)


def sign_wheel(wheel: Path, key: Ed25519PrivateKey) -> int:
    """Sign the artifacts that a wheel carries; it is replaced, whole or not at all. Returns their number.

    Raises:
        RefusedObjectError: it is no wheel, or an artifact of it is damaged.
        OSError: it cannot be read or written.
    """
    try:
        with owned.replaced(wheel) as written:
            with zipfile.ZipFile(wheel) as archive, zipfile.ZipFile(written, "x", zipfile.ZIP_DEFLATED) as new:
                (record,) = (name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
                signatures = dict(_signatures(archive, key))
                for member in archive.infolist():
                    if member.filename not in signatures and member.filename != record:
                        new.writestr(member, archive.read(member), member.compress_type)
                for name, content in signatures.items():
                    member = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
                    member.external_attr = 0o100644 << 16  # programs that unpack a wheel give its files their modes
                    new.writestr(member, content)
                new.writestr(archive.getinfo(record), _with(archive.read(record).decode(), signatures))
            written.chmod(wheel.stat().st_mode & 0o777)
    except (zipfile.BadZipFile, KeyError, ValueError, zlib.error) as error:
        raise RefusedObjectError(f"{wheel} is no wheel, or is damaged: {error}") from error
    return len(signatures)


def sign_archive(file: Path, key: Ed25519PrivateKey) -> int:
    """Sign the artifacts of an archive; it is replaced, whole or not at all. Returns their number.

    Raises:
        RefusedObjectError: it is no archive, an artifact of it is damaged, or all have more than 2 GiB.
        OSError: it cannot be read or written.
    """
    try:
        artifacts, refused = objects.unpack(file.read_bytes(), ())
    except RefusedObjectError as error:
        raise RefusedObjectError(f"{file} is not signed: {error}") from error
    for place, reason in refused.items():
        raise RefusedObjectError(f"{file}: {place} is damaged: {reason}")
    with owned.replaced(file) as written:
        written.write_bytes(objects.pack(artifacts, key))
        written.chmod(file.stat().st_mode & 0o777)
    return len(artifacts)


def _signatures(archive: zipfile.ZipFile, key: Ed25519PrivateKey) -> Iterator[tuple[str, bytes]]:
    """The name and the content of the signature of each artifact in a wheel."""
    for name in archive.namelist():
        if _CARRIED not in name or not name.endswith(f"/{FILE}"):
            continue
        place, manifest = name.removesuffix(FILE), Manifest.parse(archive.read(name))
        payload = archive.read(f"{place}{manifest.payload}")
        if hashlib.sha256(payload).hexdigest() != manifest.sha256:
            raise ValueError(f"{place}{manifest.payload} is not the one that its manifest says")
        yield f"{place}{SIGNATURE}", signing.sign(manifest.dump(), key)


def _with(record: str, files: dict[str, bytes]) -> str:
    """The text of a RECORD, with these files. Raises ValueError."""
    rows: list[Sequence[str]] = [row for row in csv.reader(io.StringIO(record)) if row and row[0] not in files]
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append((name, f"sha256={digest}", str(len(content))))
    rows.sort(key=lambda row: row[0].endswith("/RECORD"))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
