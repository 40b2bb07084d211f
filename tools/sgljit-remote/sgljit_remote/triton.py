"""Does a remote have what Triton would compile, such as kernels of torch.compile? ``Backend`` is Triton's remote cache.

``Manager`` is Triton's cache manager with it, by Triton's public interface. Rejected: ``RemoteCacheManager``, Triton's
own. It leaves lists in Triton's directory that have no paths, over which a process without a remote fails.

Triton's own cache directory is looked at first: with a remote cache, Triton itself does not. All files of a kernel are
one object, so that a kernel takes one request. The signature is over everything in the object, with the key and the
name that Triton asks for, and is verified before anything is parsed. Without a remote, and where one fails or is
refused, Triton compiles as it would without a backend.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import re
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from triton.runtime.cache import CacheManager, FileCacheManager, RemoteCacheBackend

from sgljit_core.builds import policy

from . import remote, signing
from .counts import count
from .errors import RefusedObjectError
from .objects import PREFIX

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from .signing import TrustedKey

_GROUP = "__grp__"  # what the name of the file begins with that lists a kernel's files
_TIMINGS = ".autotune.json"  # what the name of the file ends with that has the times of an autotuned kernel
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
        session, place = _session(), self._place(filename)
        if session is not None and session.is_writable and place:
            session.give(_object(place, filename), lambda key: pack(place, filename, files, key))

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
        session, place = _session(), self._place(name)
        if session is None or not place:
            return {}
        is_kernel = name.startswith(_GROUP)
        verified = functools.partial(unpack, place=place, name=name, trusted=session.trusted)
        files = session.bring(_object(place, name), _LARGEST, verified, is_leased=is_kernel)
        count(artifacts=files is not None)
        return files or {}

    def _place(self, name: str) -> str:
        """The machines that may use a file, and Triton's key; "" where it is not shared.

        Triton's key covers the GPU's architecture. A kernel needs no more. Times are those of a chip, and other files
        are libraries for this Python and this C library.
        """
        if name.startswith(_GROUP):
            return f"kernel/{self._key}"
        if name.endswith(_TIMINGS):
            chip = _chip()
            return chip and f"{chip}/{self._key}"
        here = f"{sys.implementation.cache_tag}-{platform.machine()}-{'-'.join(platform.libc_ver())}"
        return f"{here}/{self._key}"


class Manager(CacheManager):  # type: ignore[misc]  # Triton has no types
    """Triton's directory, and the remote for what is not there. Files that it brings serve without a remote, too."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self._files = FileCacheManager(key, override=override, dump=dump)
        self._backend = None if override or dump else Backend(key)

    def get_file(self, filename: str) -> str | None:
        """The path of a file; None where nobody has it."""
        path: str | None = self._files.get_file(filename)
        if path is None and self._backend is not None and (found := self._backend.get([filename])):
            return str(self._files.put(found[filename], filename))
        return path

    def put(self, data: bytes | str, filename: str, binary: bool = True) -> str:
        """Keep a file, and publish it."""
        if self._backend is not None:
            self._backend.put(filename, data if isinstance(data, bytes) else str(data).encode())
        return str(self._files.put(data, filename, binary=binary))

    def get_group(self, filename: str) -> dict[str, str] | None:
        """The paths of a kernel's files; None where nobody has all of them."""
        if self._backend is None:
            return self._files.get_group(filename)  # type: ignore[no-any-return]
        name = f"{_GROUP}{filename}"
        if not (found := self._backend.get([name])):
            return None
        contents = self._backend.get(_children(found[name]))
        group = {
            child: self._files.get_file(child) or str(self._files.put(data, child)) for child, data in contents.items()
        }
        if group != self._files.get_group(filename):  # such as in a directory that was moved
            self._files.put_group(filename, group)
        return group

    def put_group(self, filename: str, group: Mapping[str, str]) -> str:
        """Keep the list of a kernel's files, and publish all of them."""
        if self._backend is not None:
            self._backend.put(f"{_GROUP}{filename}", json.dumps({"child_paths": sorted(group)}).encode())
        return str(self._files.put_group(filename, dict(group)))


def _session() -> remote.Session | None:
    """The session with the remote; None, too, after the warm-up and while a graph is captured."""
    return remote.current() if policy.may_fetch() else None


def _object(place: str, name: str) -> str:
    return f"{PREFIX}/triton/{place}/{hashlib.sha256(name.encode()).hexdigest()[:32]}.bin"


def _chip() -> str:
    """The name of the current GPU's chip; "" where there is none."""
    import torch  # which Triton asks for the current device, too

    return re.sub(r"[^A-Za-z0-9]+", "_", torch.cuda.get_device_name()) if torch.cuda.is_available() else ""


def pack(place: str, name: str, files: Mapping[str, bytes], signer: Ed25519PrivateKey | None) -> bytes:
    """The object of a file, or of a list and the files that it names, signed if there is a key to sign with."""
    head = {"format": _FORMAT, "key": place, "name": name, "files": {one: len(data) for one, data in files.items()}}
    body = json.dumps(head).encode() + b"\n" + zlib.compress(b"".join(files.values()))
    return (bytes(_SIGNATURE) if signer is None else signing.sign(body, signer, _KIND)) + body


def unpack(content: bytes, place: str, name: str, trusted: Sequence[TrustedKey]) -> dict[str, bytes]:
    """The files of an object that was asked for by its place and a name.

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
        if asked != {"format": _FORMAT, "key": place, "name": name}:
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
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, zlib.error) as error:
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
