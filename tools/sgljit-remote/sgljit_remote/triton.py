"""Does a remote have what Triton would compile, such as kernels of torch.compile? ``Backend`` is Triton's remote cache.

Triton asks it through ``Manager``. Rejected: Triton's own manager. It leaves lists in Triton's directory that have no
paths, and a process without a remote fails when it reads one.

Triton's own cache directory is looked at first: with a remote cache, Triton itself does not. All files of a kernel are
one object, so that a kernel takes one request. The signature is over everything in the object, with the key and the
name that Triton asks for, and is verified before anything is parsed. Without a remote, and where one fails or is
refused, Triton compiles as it would without a backend.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from triton.runtime.cache import FileCacheManager, RemoteCacheBackend, RemoteCacheManager

from . import remote, signing
from .counts import count
from .errors import RefusedObjectError
from .objects import PREFIX

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from .signing import TrustedKey

_GROUP = "__grp__"  # what the name of the file begins with that lists a kernel's files
_LARGEST = 1 << 28
_KIND, _FORMAT = "triton", 1
_SIGNATURE = 64


class Backend(RemoteCacheBackend):  # type: ignore[misc]  # Triton has no types
    """The files of one key of Triton's. No method raises for what the remote does."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._directory = FileCacheManager(key)
        self._is_group = False
        self._files: dict[str, bytes] = {}  # that were brought, or that are to be published together

    def get(self, filenames: Iterable[str]) -> dict[str, bytes]:
        """The content of files by their names: of all of them, or of none."""
        names = list(filenames)
        self._is_group |= any(name.startswith(_GROUP) for name in names)
        if (found := self._local(names)) is not None:
            return found
        if len(names) == 1 and names[0] not in self._files:
            self._files |= self._brought(names[0])
        return {name: self._files[name] for name in names} if self._files.keys() >= set(names) else {}

    def put(self, filename: str, data: bytes) -> None:
        """Publish a file, where the remote is writable. The files of a kernel are held until their list comes."""
        self._files[filename] = data
        if self._is_group and not filename.startswith(_GROUP):
            return
        files, self._files = self._files, {}
        session = remote.current()
        if session is not None and session.is_writable:
            session.give(self._object(filename), lambda key: pack(self._key, filename, files, key))

    def _local(self, names: Sequence[str]) -> dict[str, bytes] | None:
        """The files if Triton's directory has all of them, and whatever a list among them names."""
        try:
            found = {name: Path(self._directory.get_file(name) or "").read_bytes() for name in names}
            listed = [child for name in names if name.startswith(_GROUP) for child in _children(found[name])]
        except (OSError, ValueError):
            return None
        return found if all(map(self._directory.has_file, listed)) else None

    def _brought(self, name: str) -> dict[str, bytes]:
        """The files of an object of the remote; none where it has none that can be used."""
        session = remote.current()
        if session is None or (content := session.bring(self._object(name), _LARGEST)) is None:
            return {}
        try:
            files = unpack(content, self._key, name, session.trusted)
        except RefusedObjectError as error:
            session.refuse(self._object(name), str(error))
            return {}
        count(artifacts=1)
        return files

    def _object(self, name: str) -> str:
        """The name of an object. Files that belong to no kernel are libraries for this Python and this C library."""
        here = f"{sys.implementation.cache_tag}-{platform.machine()}-{'-'.join(platform.libc_ver())}"
        digest = hashlib.sha256(name.encode()).hexdigest()[:32]
        return f"{PREFIX}/triton/{'kernel' if name.startswith(_GROUP) else here}/{self._key}/{digest}.bin"


class Manager(RemoteCacheManager):  # type: ignore[misc]  # Triton has no types
    """Triton's manager of a remote cache, with files in Triton's directory that serve without a remote, too."""

    def _materialize(self, filename: str, data: bytes) -> str:
        if filename.startswith(_GROUP):
            place = Path(self._file_cache_manager.cache_dir)
            data = json.dumps({"child_paths": {name: str(place / name) for name in _children(data)}}).encode()
        return str(super()._materialize(filename, data))


def pack(key: str, name: str, files: Mapping[str, bytes], signer: Ed25519PrivateKey | None) -> bytes:
    """The object of a file, or of a list and the files that it names, signed if there is a key to sign with."""
    head = {"format": _FORMAT, "key": key, "name": name, "files": {one: len(data) for one, data in files.items()}}
    body = json.dumps(head).encode() + b"\n" + zlib.compress(b"".join(files.values()))
    return (bytes(_SIGNATURE) if signer is None else signing.sign(body, signer, _KIND)) + body


def unpack(content: bytes, key: str, name: str, trusted: Sequence[TrustedKey]) -> dict[str, bytes]:
    """The files of an object that was asked for by a key and a name.

    Args:
        trusted: the keys, one of which must have signed it; without any, no signature is asked for.

    Raises:
        RefusedObjectError: it is no such object.
    """
    signature, body = content[:_SIGNATURE], content[_SIGNATURE:]
    if trusted:
        signing.check(body, signature if any(signature) else None, trusted, _KIND)
    head, _, packed = body.partition(b"\n")
    try:
        document = json.loads(head)
        asked = {field: document[field] for field in ("format", "key", "name")}
        sizes = {str(one): int(size) for one, size in document["files"].items()}
        if asked != {"format": _FORMAT, "key": key, "name": name}:
            raise ValueError(f"it is that of another, {asked}")
        if not all(map(_is_plain, sizes)) or min(sizes.values()) < 0 or sum(sizes.values()) > _LARGEST:
            raise ValueError(f"it has files of other names or sizes than Triton's, such as {min(sizes)!r}")
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(packed, sum(sizes.values()) + 1)
        if len(data) != sum(sizes.values()) or not unpacker.eof:
            raise ValueError("its files have other sizes than it says")
        files = {}
        for one, size in sizes.items():
            files[one], data = data[:size], data[size:]
        if files.keys() != {name, *(_children(files[name]) if name.startswith(_GROUP) else ())}:
            raise ValueError("it has other files than its list names")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, zlib.error) as error:
        raise RefusedObjectError(f"it is no object of Triton's, or is damaged: {error}") from error
    return files


def _children(content: bytes) -> list[str]:
    """The files that a list names. Raises ValueError: it is none."""
    document = json.loads(content)
    children = document.get("child_paths") if isinstance(document, dict) else None
    if not isinstance(children, list | dict):
        raise ValueError("its list of files is none")
    return [str(child) for child in children]


def _is_plain(name: str) -> bool:
    """Whether a name is one of a file in Triton's directory, and of no other place."""
    return name.isprintable() and "/" not in name and name not in ("", ".", "..") and len(name.encode()) < 256
