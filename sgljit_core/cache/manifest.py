"""What is recorded about an artifact? Enough to verify it, to find it again and to say why another build differs.

The file holds the manifest and the sha256 of its canonical JSON, so that a damaged manifest shows as well as a
damaged payload; the keys it claims must be those of the directory that it lies in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from . import keys
from .keys import Location

FILE = "manifest.json"
_FORMAT = 1
_LARGEST = 1e300


class ManifestError(Exception):
    """A manifest cannot be read. Caught where it is read: the artifact then counts as damaged."""


_NO_TEXT = re.compile("[\0\ud800-\udfff]")


def _are_texts(values: Iterable[Any]) -> bool:
    try:
        return _NO_TEXT.search("".join(values)) is None
    except TypeError:  # one is no string
        return False


_CHECKS: Mapping[str, Callable[[Any], bool]] = {  # whether a value of the JSON is one of the annotated type
    "str": lambda value: _are_texts((value,)),
    "int": lambda value: type(value) is int and value >= 0,
    "float": lambda value: type(value) in (int, float) and abs(value) < _LARGEST,  # false for NaN
    "tuple[str, ...]": lambda value: isinstance(value, list) and _are_texts(value),
    "Mapping[str, str]": lambda value: isinstance(value, dict) and _are_texts((*value, *value.values())),
    "Mapping[str, int]": lambda value: isinstance(value, dict) and all(map(_CHECKS["int"], value.values())),
}


@dataclass(frozen=True)
class Manifest:
    """The manifest of one artifact.

    Attributes:
        payload: the name of the file beside the manifest that holds the code ("module.so").
        size, sha256: of the payload.
        build: what messages call it.
        target, family, module, markers: which module, for which target, which variant.
        plugin: distribution and version of the plugin that asked for it; "" for a direct ``load_jit``.
        core: the version of sgljit-core that built it.
        command: the compiler commands, one a line.
        seconds: what they took.
        created: when, in seconds since 1970.
        source, toolchain: the ingredients of the two keys.
        observed: sha256 by path of files that the compiler read and no key covers.
        resources: what a kernel takes, if it is known: ``registers`` of a thread, ``shared_bytes`` of a block,
            ``spilled_bytes`` of a thread, ``access_bytes`` of the narrowest access to global memory.
            Artifacts of earlier releases have none.
    """

    payload: str
    size: int
    sha256: str
    build: str
    target: str
    family: str
    module: str
    markers: tuple[str, ...]
    plugin: str
    core: str
    command: str
    seconds: float
    created: float
    source: Mapping[str, str]
    toolchain: Mapping[str, str]
    observed: Mapping[str, str]
    resources: Mapping[str, int] = field(default_factory=dict)

    @property
    def source_key(self) -> str:
        return keys.key(self.source)

    @property
    def toolchain_key(self) -> str:
        return keys.key(self.toolchain)

    @property
    def location(self) -> Location:
        """Where it lies below a root."""
        return Location(self.target, self.family, self.module, self.source_key)

    def entry_name(self) -> str:
        """The name of the artifact's directory below its source key."""
        return self.toolchain_key + (f".{keys.key(self.observed)[:8]}" if self.observed else "")

    def dump(self) -> bytes:
        """The text of the file."""
        body = vars(self)
        checksum = keys.hashed(body)
        return json.dumps({"format": _FORMAT, "sha256": checksum, "manifest": body}, indent=1).encode() + b"\n"

    @classmethod
    def parse(cls, text: bytes) -> Manifest:
        """Read the text of a file. Raises ManifestError: with what is wrong about it."""
        try:
            document = json.loads(text)
            body = document["manifest"]
            checksum = document["sha256"]
            version = document["format"]
            actual = keys.hashed(body)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ManifestError(f"its manifest cannot be read ({type(error).__name__}: {error})") from error
        if version != _FORMAT:
            raise ManifestError(f"its manifest has format {version}, expected {_FORMAT}")
        if actual != checksum:
            raise ManifestError("its manifest does not have the sha256 that it claims")
        if not isinstance(body, dict) or {*body, "resources"} != {one.name for one in fields(cls)}:
            raise ManifestError("its manifest has other fields than expected")
        body.setdefault("resources", {})
        wrong = [one.name for one in fields(cls) if not _CHECKS[str(one.type)](body[one.name])]
        if wrong:
            raise ManifestError(f"its manifest has other types than expected: {', '.join(wrong)}")
        return cls(**{**body, "markers": tuple(body["markers"])})
