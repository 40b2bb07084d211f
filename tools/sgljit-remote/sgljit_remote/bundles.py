"""What is in a bundle? The compiled artifacts of sgljit, torch, Triton and other libraries, in one signed file.

A bundle is a zip archive. ``bundle.json`` has each part's key, and the size and sha256 of each of its files; the
signature is over its text. Nothing is written before the signature, the keys and the digests of all parts were looked
at. Torch reads its part by pickle, so that a bundle is code like any other artifact.

A file that is there already stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from sgljit_core import paths
from sgljit_core.cache.lookup import LARGEST
from sgljit_core.errors import UntrustedCacheError

from . import config, objects, owned, parts, signing, stores, transfer
from .counts import refused
from .errors import BundleMismatchError, RefusedObjectError, UntrustedRemoteError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from .signing import TrustedKey

OWN, TORCH = "sgljit", "torch"  # the parts that are no directories, each one file
_LIST, _SIGNATURE = "bundle.json", "signature"
_FORMAT = 1
_LARGEST_LIST, _LARGEST_SIGNATURE = 64 << 20, 1 << 10
_HERE = b"@SGLJIT-BUNDLE-DIRECTORY@"  # in place of a directory's path, in files that hold it


class Part(NamedTuple):
    """A part of a bundle: what it depends on, and the size and sha256 of its files by their paths."""

    key: Mapping[str, str]
    files: Mapping[str, tuple[int, str]]


class Laid(NamedTuple):
    """The numbers of a part's files, or of artifacts, that are new, and of those that were there."""

    new: int
    there: int


def write(file: Path, root: Path, key: Ed25519PrivateKey | None) -> dict[str, Part]:
    """Bundle what this machine has, and what torch compiled in this process; the parts that are not empty.

    Args:
        root: the cache of sgljit.
        key: signs the bundle, if there is one.

    Raises:
        RefusedObjectError: it would have more bytes than are laid out.
        OSError: the file cannot be written; one that was there stays.
    """
    keys: dict[str, dict[str, str]] = {}
    files: dict[str, dict[str, tuple[int, str]]] = {}
    with owned.replaced(file) as written, zipfile.ZipFile(written, "x", zipfile.ZIP_DEFLATED) as archive:
        for name, part_key, path, content in _contents(root):
            keys[name] = part_key
            files.setdefault(name, {})[path] = (len(content), hashlib.sha256(content).hexdigest())
            archive.writestr(f"{name}/{path}", content)
        found = {name: Part(keys[name], files[name]) for name in keys}
        if (total := _size(found)) > LARGEST:
            raise RefusedObjectError(
                f"{file} is not written: its {total} bytes are more than the {LARGEST} that are laid out. Remove "
                f"old files from the caches of {', '.join(found)}, or name empty ones before the warm-up"
            )
        document = {"format": _FORMAT, "parts": {name: part._asdict() for name, part in found.items()}}
        text = json.dumps(document, indent=1, sort_keys=True).encode()
        archive.writestr(_LIST, text)
        if key is not None:
            archive.writestr(_SIGNATURE, signing.sign(text, key, "bundle"))
    return found


def _contents(root: Path) -> Iterator[tuple[str, dict[str, str], str, bytes]]:
    """The part, its key, the path and the bytes of each file."""
    if artifacts := list(transfer.local(root, transfer.Choice())):
        yield OWN, {}, "artifacts.zip", objects.pack(artifacts, None)
    if content := _saved_by_torch():
        yield TORCH, parts.torch_key(), "artifacts.bin", content
    for directory in parts.directories().values():
        for path in _files(directory):
            name = path.relative_to(directory.path.resolve()).as_posix()
            content = path.read_bytes()
            if _names_itself(directory, name):
                content = content.replace(_own_path(directory), _HERE)
            yield directory.name, directory.whole_key, name, content


def _saved_by_torch() -> bytes:
    import torch

    saved = torch.compiler.save_cache_artifacts()
    return saved[0] if saved else b""


def _files(directory: parts.Directory) -> list[Path]:
    """The plain files of a directory that a bundle takes: not what a link leads to, and no names of another form.

    Nor what was being laid out when the process was killed.
    """
    place = directory.path.resolve()
    found = {path for pattern in directory.patterns for path in place.glob(pattern)}
    whole = (path for path in found if not re.fullmatch(r"\.[0-9a-f]{16}", path.name))
    plain = [path for path in whole if path.is_file() and path.resolve() == path]
    return sorted(path for path in plain if _is_path(path.relative_to(place).as_posix()))


def _is_path(text: str) -> bool:
    """Whether a text is the path of a file below a directory."""
    return text.isprintable() and "\\" not in text and {"", ".", ".."}.isdisjoint(text.split("/"))


def _names_itself(directory: parts.Directory, name: str) -> bool:
    return bool(directory.names_itself) and PurePosixPath(name).match(directory.names_itself)


def _own_path(directory: parts.Directory) -> bytes:
    return json.dumps(str(directory.path))[1:-1].encode()  # as it stands in a text of JSON


def lay_out(file: Path, root: Path, trusted: Sequence[TrustedKey], chosen: Collection[str] = ()) -> dict[str, Laid]:
    """Lay a bundle out where this machine's libraries look: all parts, or the ``chosen`` ones.

    Raises:
        RefusedObjectError: it is damaged, or not signed by a trusted key. Nothing was laid out.
        BundleMismatchError: a part is for another machine. Nothing was laid out.
        OSError: a directory cannot be written, or another user could write to it.
    """
    try:
        archive = zipfile.ZipFile(file)
    except OSError:
        raise
    except objects.BROKEN as error:
        raise RefusedObjectError(f"{file} is no bundle, or damaged: {error}") from error
    with archive:
        directories = parts.directories()
        try:
            found = _verified(archive, trusted)
            if absent := sorted(set(chosen) - found.keys()):
                raise RefusedObjectError(f"it has no part {absent[0]}, but {', '.join(sorted(found))}")
            found = {name: part for name, part in found.items() if not chosen or name in chosen}
            _check_keys(file, found, directories)
            for name, part in found.items():  # all of them before the first is written
                for path in part.files:
                    content = _content(archive, name, path, part=part)
                    if name == OWN and (refused := objects.unpack(content, ()).refused):
                        raise RefusedObjectError("; ".join(f"{place}: {reason}" for place, reason in refused.items()))
        except BundleMismatchError:
            raise
        except objects.BROKEN as error:
            raise RefusedObjectError(f"{file} is refused and not used: {error}") from error
        return {name: _laid(archive, name, part, root, directories) for name, part in found.items()}


def _verified(archive: zipfile.ZipFile, trusted: Sequence[TrustedKey]) -> dict[str, Part]:
    """The parts. Their list must be signed, and the archive must have the files that it lists, and no others."""
    members = {member.filename: member for member in archive.infolist()}
    if len(members) < len(archive.infolist()):
        raise RefusedObjectError("it has two files of one name")
    if _LIST not in members or members[_LIST].file_size > _LARGEST_LIST:
        raise RefusedObjectError(f"it has no {_LIST}, or a very large one")
    text = archive.read(_LIST)
    if trusted:
        signature = members.get(_SIGNATURE)
        signing.check(text, archive.open(signature).read(_LARGEST_SIGNATURE) if signature else None, trusted, "bundle")
    found = _parsed(text)
    listed = {f"{name}/{path}" for name, part in found.items() for path in part.files}
    if others := members.keys() - listed - {_LIST, _SIGNATURE}:
        raise RefusedObjectError(f"it has files that it does not list, such as {min(others)!r}")
    if absent := listed - members.keys():
        raise RefusedObjectError(f"it lacks files that it lists, such as {min(absent)!r}")
    if _size(found) > LARGEST:
        raise RefusedObjectError(f"it has more than {LARGEST} bytes")
    return found


def _size(found: Mapping[str, Part]) -> int:
    return sum(size for part in found.values() for size, _ in part.files.values())


def _parsed(text: bytes) -> dict[str, Part]:
    try:
        document = json.loads(text)
        if document["format"] != _FORMAT:
            raise ValueError(f"its format is {document['format']!r}, expected {_FORMAT}")
        found = {}
        for name, part in document["parts"].items():
            files = {path: (int(size), str(digest)) for path, (size, digest) in part["files"].items()}
            wrong = [path for path in files if not _is_path(path)]
            if wrong or not name.isidentifier() or any(size < 0 for size, _ in files.values()):
                raise ValueError(f"part {name!r} has a file {wrong[:1] or 'of no size'}")
            if name in (OWN, TORCH) and len(files) != 1:
                raise ValueError(f"part {name!r} has {len(files)} files, expected 1")
            found[name] = Part({str(field): str(value) for field, value in part["key"].items()}, files)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RefusedObjectError(f"its {_LIST} is none ({type(error).__name__}: {error})") from error
    return found


def _check_keys(file: Path, found: Mapping[str, Part], directories: Mapping[str, parts.Directory]) -> None:
    """Refuse parts that are for another machine, with all differences."""
    differences = []
    for name, part in found.items():
        if name not in directories and name not in (OWN, TORCH):
            differences.append(f"{name}: nothing that is installed here takes it")
            continue
        here = {} if name == OWN else parts.torch_key() if name == TORCH else directories[name].whole_key
        differences += [
            f"{name}: {field} is {part.key.get(field, 'none')!r}, and here {here.get(field, 'none')!r}"
            for field in sorted(part.key.keys() | here.keys())
            if part.key.get(field) != here.get(field)
        ]
    if differences:
        raise BundleMismatchError(file, differences)


def _content(archive: zipfile.ZipFile, name: str, path: str, *, part: Part) -> bytes:
    size, digest = part.files[path]
    with archive.open(f"{name}/{path}") as member:
        content = member.read(size + 1)
    if len(content) != size or hashlib.sha256(content).hexdigest() != digest:
        raise RefusedObjectError(f"its file {name}/{path} is not the one that it lists")
    return content


def _laid(
    archive: zipfile.ZipFile, name: str, part: Part, root: Path, directories: Mapping[str, parts.Directory]
) -> Laid:
    if name == OWN:
        unpacked = objects.unpack(_content(archive, name, *part.files, part=part), ())
        new = transfer.put(unpacked.artifacts, root)
        return Laid(new, len(unpacked.artifacts) - new)
    if name == TORCH:
        import torch

        _make(directories["inductor"].path)  # in which torch writes what it loads
        if torch.compiler.load_cache_artifacts(_content(archive, name, *part.files, part=part)) is None:
            raise RefusedObjectError("torch does not take its part of the bundle")
        return Laid(1, 0)
    directory, new = directories[name], 0
    _make(directory.path)
    for path in part.files:
        content = _content(archive, name, path, part=part)
        if _names_itself(directory, path):
            content = content.replace(_HERE, _own_path(directory))
        new += _placed(directory.path, PurePosixPath(path), content)
    return Laid(new, len(part.files) - new)


def _make(directory: Path) -> None:
    """Make a directory that only this user can write; one that is there must be such. Raises UntrustedCacheError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    owned.check(directory)


def _placed(root: Path, path: PurePosixPath, content: bytes) -> bool:
    """Write a file whole, unless something is there; whether it was written. Raises UntrustedCacheError."""
    (root / path.parent).mkdir(mode=0o700, parents=True, exist_ok=True)
    written = f".{os.urandom(8).hex()}"
    with owned.directory(root, *path.parent.parts) as place:
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=place)
        try:
            with os.fdopen(descriptor, "wb") as opened:
                opened.write(content)
            return stores.settle(written, path.name, replace=False, place=place)
        finally:
            with contextlib.suppress(FileNotFoundError):  # it has its name
                os.unlink(written, dir_fd=place)


def bundle(file: Path | str) -> dict[str, int]:
    """Write what this machine has, and what torch compiled in this process, to a signed file; the files of each part.

    Call it at the end of a warm-up. ``SGLJIT_SIGNING_KEY`` names the key; without it the bundle is not signed.

    Raises:
        KeyFileError: the key cannot be used.
        RefusedObjectError: it would have more bytes than are laid out.
        OSError: the file cannot be written; one that was there stays.
    """
    path = Path(file).absolute()
    key = config.settings(str(path)).signing_key
    written = write(path, paths.cache_root(), signing.private_key(key) if key else None)
    return {name: len(part.files) for name, part in written.items()}


def unbundle(file: Path | str, *parts: str) -> dict[str, Laid]:
    """Lay a bundle out before an engine starts, all of it or some of its parts; what became of each.

    It asks which GPUs this machine has, and so initialises CUDA: a process that will fork workers for the GPU runs
    ``sgljit cache unbundle`` in its place.

    Raises:
        UntrustedRemoteError: no key is trusted (``SGLJIT_TRUSTED_KEYS``), nor is ``SGLJIT_REMOTE_UNSIGNED=1`` set.
        RefusedObjectError: the bundle is damaged, or not signed by a trusted key. Nothing was laid out.
        BundleMismatchError: it is for another machine. Nothing was laid out.
        OSError: a directory cannot be written, or another user could write to it.
    """
    path = Path(file).absolute()
    try:
        return lay_out(path, paths.cache_root(), transfer.keys_for(path, config.settings(str(path))), parts)
    except (BundleMismatchError, RefusedObjectError, UntrustedCacheError, UntrustedRemoteError) as error:
        refused(str(path), str(error))
        raise
