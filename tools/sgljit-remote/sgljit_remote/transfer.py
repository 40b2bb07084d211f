"""Many artifacts at once, for operators: a cache is pushed to a remote, or archives are pulled from it.

Nothing here is on the way of a process that serves: a remote that does not answer is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sgljit_core import log
from sgljit_core.cache import lookup
from sgljit_core.cache.manifest import ManifestError
from sgljit_core.errors import ConfigError, UntrustedCacheError

from . import archives, objects, owned
from .config import Settings
from .counts import refuse
from .errors import RefusedObjectError, RemoteUnavailableError, UntrustedRemoteError
from .index import Archive
from .objects import Artifact
from .remote import Remote, put_in_place

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from .signing import TrustedKey

Progress = Callable[[str], object]
ENTRIES = "[!.]*/*/*/" + "[0-9a-f]" * 32 + "/*"


class Choice(NamedTuple):
    """The artifacts that are meant: of some families ("_" for none) and targets, or of all where none is named.

    Attributes:
        directories: those of the artifacts that are meant; None for all. A dry run takes some that are not there yet.
    """

    families: Collection[str] = ()
    targets: Collection[str] = ()
    directories: Collection[Path] | None = None

    def takes(self, family: str, target: str) -> bool:
        """Whether artifacts of a family and target are meant."""
        return family in (self.families or (family,)) and target in (self.targets or (target,))


def directories_of(root: Path) -> list[Path]:
    """The directories of a cache's artifacts. Raises OSError: one above them cannot be listed, which a glob hides."""
    places = [root]
    for pattern in ENTRIES.split("/"):
        places = [child for place in places for child in _children(place) if child.match(pattern)]
    return sorted(places)


def _children(place: Path) -> list[Path]:
    try:
        return list(place.iterdir())
    except (FileNotFoundError, NotADirectoryError):  # a file, or another process has just removed it
        return []


def local(root: Path, choice: Choice) -> Iterator[Artifact]:
    """The artifacts of a cache. One that is damaged is left out, with a warning."""
    for path in directories_of(root):
        target, family = path.relative_to(root).parts[:2]
        is_meant = choice.directories is None or path in choice.directories
        if not is_meant or not choice.takes(family, target):
            continue
        try:
            found = lookup.read(path, root)
        except (ManifestError, UntrustedCacheError) as error:
            text = f"{path} is damaged and left out: {error}"
            log.once("artifact_damaged", str(path), text, directory=str(path))
            continue
        if found is not None:
            yield Artifact(found.manifest, found.payload)


def _all_of(root: Path, choice: Choice) -> list[Artifact]:
    """The artifacts of a cache. Raises ConfigError: it has none of a family or target that is named, as if misspelt."""
    found = list(local(root, choice))
    absent = [*(set(choice.families) - {one.manifest.family or "_" for one in found})]
    absent += set(choice.targets) - {one.manifest.target for one in found}
    if absent:
        places = [path.relative_to(root).parts[:2] for path in directories_of(root)]
        families = ", ".join(sorted({family for _, family in places})) or "none"
        targets = ", ".join(sorted({target for target, _ in places})) or "none"
        raise ConfigError(
            f"{root} has no such artifact of {', '.join(sorted(absent))}; it has the families {families} and the "
            f"targets {targets}"
        )
    return found


def push(
    remote: Remote,
    root: Path,
    choice: Choice,
    name: str = "",
    *,
    dry_run: bool,
    progress: Progress,
    replace: bool = False,
) -> int:
    """Publish the artifacts of a cache, each as an object of its own, and in archives; returns their number.

    An archive holds a family for a target, and keeps what others have pushed there; with a ``name``, one archive of
    that name holds all, and nothing else.

    Args:
        dry_run: only read, and say what would be done.
        replace: write objects anew that are there, such as to sign them with another key. Archives keep nothing then.

    Raises:
        ConfigError: there is no artifact of a family or a target that is named.
        UntrustedRemoteError: keys are trusted, and there is none to sign with.
        KeyFileError: the key cannot be used, or has expired.
        RemoteUnavailableError: the remote does not take them.
        RefusedObjectError: they are too many, or too large, for one archive.
    """
    key = remote.signer()
    artifacts = _all_of(root, choice)
    unmade: list[Path] = []
    for place in sorted(set(choice.directories or ()).difference(directories_of(root))) if dry_run else ():
        if (found := _held(remote, place.relative_to(root))) is None:
            unmade.append(place)
        else:
            artifacts.append(found)
    count = len(artifacts) + len(unmade)
    for number, artifact in enumerate(artifacts, 1):
        if dry_run:
            did = "would push" if replace or not _is_published(remote, artifact) else "is there"
        else:
            did = "pushed" if remote.publish_one(artifact, key, replace=replace) else "is there"
        progress(f"{number}/{count} {did}: {artifact.manifest.build}, {len(artifact.payload)} bytes")
    for number, place in enumerate(unmade, len(artifacts) + 1):
        progress(f"{number}/{count} would push, once it is compiled: {place}")
    groups = {Archive(name, "", "", 0, ()): artifacts} if name and artifacts else archives.grouped(artifacts)
    written = {}
    is_joined = not (name or replace)
    for archive, members in groups.items():
        entry, content = archives.packed(remote, archive, members, key, is_joined=is_joined)
        if not dry_run:
            remote.put(entry.object_name, content, replace=True)
        written[entry.name] = entry
        did = "would write" if dry_run else "wrote"
        progress(f"{did} the archive {entry.name}: {len(entry.artifacts)} artifacts, {entry.size} bytes")
    if unmade:
        progress(f"archives get {len(unmade)} artifacts more, whose sizes are known once they are compiled")
    if written and not dry_run:
        archives.enter(remote, written, lambda: archives.listed(remote))
    return count


def _held(remote: Remote, place: Path) -> Artifact | None:
    """An artifact that the cache lacks, by its place below a root, from a remote; None where it must be compiled."""
    name = objects.object_name(place.parent, place.name)
    content = remote.get(name)
    return next(iter(remote.unpack(name, content).artifacts), None) if content is not None else None


def _is_published(remote: Remote, artifact: Artifact) -> bool:
    """Whether a push would leave the object of an artifact as it is. Next to nothing of it is read."""
    manifest = artifact.manifest
    try:
        return remote.get(objects.object_name(manifest.location.path, manifest.toolchain_key), most=0) is not None
    except RefusedObjectError:  # it has more than no bytes
        return True


class Pulled(NamedTuple):
    """The numbers of the artifacts that were put into a cache, of those that were there, and of those refused."""

    new: int
    there: int
    refused: int


def pull(remote: Remote, root: Path, choice: Choice, name: str = "", *, dry_run: bool, progress: Progress) -> Pulled:
    """Put the artifacts of archives into a cache: those of families and targets, or that of a ``name``.

    An archive whose artifacts are all there is not asked for.

    Raises:
        RemoteUnavailableError: the remote does not answer, or has no such archive.
        RefusedObjectError: its index is none.
    """
    known = remote.archives()
    if name:
        chosen = [known[name]] if name in known else []
    else:
        chosen = [one for one in known.values() if one.family and choice.takes(one.family, one.target)]
    wanted = [name] if name else sorted(set(choice.families) - {archive.family for archive in chosen})
    if not chosen or (wanted and not name):
        names = ", ".join(sorted(known)) or "none"
        raise RemoteUnavailableError(
            f"{remote.store.shown} has no archive of {', '.join(wanted) or 'any family'}; expected one of those that "
            f"were pushed: {names}"
        )
    new = there = refused = 0
    for number, archive in enumerate(chosen, 1):
        if not archive.artifacts:
            raise RemoteUnavailableError(f"{remote.store.shown} lists {archive.name} without artifacts; push it again")
        absent = [place for place in archive.artifacts if not _is_there(root, place)]
        did = "would pull" if dry_run else "pulls"
        progress(f"{number}/{len(chosen)} {did} {archive.name}: {len(absent)} new artifacts, {archive.size} bytes")
        there += len(archive.artifacts) - len(absent)
        if dry_run or not absent:
            continue
        content = remote.get(archive.object_name)
        if content is None:
            raise RemoteUnavailableError(f"{remote.store.shown} lists {archive.name}, and has no such archive")
        unpacked = remote.unpack(archive.object_name, content)
        refused += len(unpacked.refused)
        new += put(unpacked.artifacts, root)
        lacking = [place for place in absent if not _is_there(root, place)]
        if lacking and not unpacked.refused:
            raise RemoteUnavailableError(
                f"{archive.name} of {remote.store.shown} lacks {len(lacking)} artifacts that the index lists, such as "
                f"{lacking[0]}; push it again"
            )
    return Pulled(new, there, refused)


def put(artifacts: Iterable[Artifact], root: Path) -> int:
    """Put those of some artifacts that are not there below a root; their number."""
    absent = [artifact for artifact in artifacts if not _is_there(root, artifact.place)]
    for artifact in absent:
        put_in_place(artifact, root)
    return len(absent)


def _is_there(root: Path, place: str) -> bool:
    """Whether a cache has an artifact, whole: one that is damaged is replaced. Raises OSError, as it cannot be read."""
    try:
        return lookup.read(root / place, root) is not None
    except ManifestError:
        return False


def export_file(file: Path, root: Path, choice: Choice, key: Ed25519PrivateKey | None) -> int:
    """Write the artifacts of a cache to a file, signed with a key if there is one; returns their number.

    One that was there is replaced by the whole new one, or stays.

    Raises:
        ConfigError: there is no artifact of a family or a target that is named.
        RefusedObjectError: the artifacts are too many, or too large, for one file.
        OSError: the file cannot be written.
    """
    artifacts = _all_of(root, choice)
    if artifacts:
        content = objects.pack(artifacts, key)
        if much := objects.too_much(content):
            raise RefusedObjectError(f"{file} is not written, as each machine would refuse it: {much}")
        with owned.replaced(file) as written, written.open("xb") as opened:
            opened.write(content)
    return len(artifacts)


def import_file(file: Path, root: Path, trusted: Sequence[TrustedKey]) -> Pulled:
    """Put the artifacts of a file into a cache. Each that is refused is a warning.

    Raises:
        RefusedObjectError: it is no such file.
        OSError: it cannot be read, or the cache takes no files.
    """
    with file.open("rb") as opened:
        content = opened.read(lookup.LARGEST + 1)
    if len(content) > lookup.LARGEST:
        raise RefusedObjectError(f"{file} has more than {lookup.LARGEST} bytes")
    unpacked = objects.unpack(content, trusted)
    for place, reason in unpacked.refused.items():
        refuse(str(file), place, reason)
    new = put(unpacked.artifacts, root)
    return Pulled(new, len(unpacked.artifacts) - new, len(unpacked.refused))


def push_bundle(remote: Remote, file: Path, name: str) -> None:
    """Publish a bundle under a name; one that is there is replaced. Raises RemoteUnavailableError, and OSError."""
    remote.put(_bundle_name(name), file.read_bytes(), replace=True)


def pull_bundle(remote: Remote, file: Path, name: str) -> None:
    """Write the bundle of a name to a file, as it is: whoever lays it out verifies it.

    Raises:
        RemoteUnavailableError: the remote does not answer, or has no such bundle.
        RefusedObjectError: it is too large, or the disk is full. A file that was there stays.
        OSError: the file cannot be made.
    """
    with owned.replaced(file) as written, written.open("xb") as opened:
        if not remote.save(_bundle_name(name), opened):
            shown = remote.store.shown
            raise RemoteUnavailableError(f"{shown} has no bundle {name!r}; `sgljit cache bundle --push` it")


def _bundle_name(name: str) -> str:
    if not re.fullmatch(r"[\w-]{1,100}", name, re.ASCII):
        raise ConfigError(f"the name of a bundle has letters, digits, '-' and '_'; got {name!r}")
    return f"{objects.PREFIX}/bundles/{name}.bundle"


def keys_for(file: Path, settings: Settings) -> tuple[TrustedKey, ...]:
    """The keys, one of which must have signed a file; none where it is accepted without a signature.

    Raises:
        UntrustedRemoteError: nothing says whose code it has.
        KeyFileError: a key cannot be used.
        OSError: there is no such file.
    """
    if not (settings.trusted_keys or settings.unsigned):
        file.stat()  # one that is missing is no question of trust
        raise UntrustedRemoteError(
            f"{file} is not used: whoever made it could run code as you. Name the keys whose code you trust in "
            "SGLJIT_TRUSTED_KEYS, or accept it as it is with SGLJIT_REMOTE_UNSIGNED=1"
        )
    from . import signing

    return signing.public_keys(settings.trusted_keys) if settings.trusted_keys else ()
