"""Which archive of a remote holds an artifact?

``index.json`` lists the archives: what each is of, its size, and the places of its artifacts. It is a hint and no more:
it is not signed, what it says of sizes and places is not believed, and an artifact that it leaves out is an object of
its own all the same. Two that push at once may lose an entry of each other's; the next push brings it back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from .errors import RefusedObjectError
from .objects import PLACE, PREFIX

NAME = f"{PREFIX}/index.json"
LARGEST = 64 << 20
_ARCHIVE = r"(?!\.)[\w.+-]{1,200}"
_FORMAT = 1


class Archive(NamedTuple):
    """An entry of the index.

    Attributes:
        name: the archive's name.
        family, target: what it is of; both empty for one that somebody named.
        size: its bytes.
        artifacts: the places of its artifacts below a root.
    """

    name: str
    family: str
    target: str
    size: int
    artifacts: tuple[str, ...]

    @property
    def object_name(self) -> str:
        return f"{PREFIX}/archives/{self.name}.zip"

    def holds(self, location: Path, toolchain_key: str | None) -> bool:
        """Whether it has an artifact of a location, of a toolchain or, without one, of any."""
        return any(is_at(place, location, toolchain_key) for place in self.artifacts)


def is_at(place: str, location: Path, toolchain_key: str | None) -> bool:
    """Whether a place is that of an artifact of a location, of a toolchain or, without one, of any."""
    source, _, name = place.rpartition("/")
    return source == location.as_posix() and toolchain_key in (None, name.partition(".")[0])


def parse(content: bytes | None) -> dict[str, Archive]:
    """The archives by name; none where there is no index. Raises RefusedObjectError: it is no index."""
    if content is None:
        return {}
    try:
        document = json.loads(content)
        archives = document["archives"]
        if document["format"] != _FORMAT or not isinstance(archives, list):
            raise ValueError(f"its format is {document['format']!r}, expected {_FORMAT}")
        found = [_entry(archive) for archive in archives]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RefusedObjectError(f"it is no index of archives ({type(error).__name__}: {error})") from error
    return {archive.name: archive for archive in found}


def _entry(archive: Mapping[str, object]) -> Archive:
    values = {field: archive[field] for field in Archive._fields}
    name, family, target, size, artifacts = values.values()
    are_texts = all(isinstance(text, str) for text in (name, family, target))
    if not are_texts or not isinstance(size, int) or not isinstance(artifacts, list):
        raise TypeError(f"an entry has other types than expected: {name!r}")
    places = all(re.fullmatch(PLACE, place, re.ASCII) for place in artifacts)
    if not places or not re.fullmatch(_ARCHIVE, str(name), re.ASCII):
        raise ValueError(f"an entry has a name that is none of an archive or an artifact: {name!r}")
    return Archive(str(name), str(family), str(target), size, tuple(artifacts))


def dump(archives: Iterable[Archive]) -> bytes:
    """The text of an index."""
    listed = [archive._asdict() for archive in sorted(archives, key=lambda archive: archive.name)]
    return json.dumps({"format": _FORMAT, "archives": listed}, indent=1).encode()
