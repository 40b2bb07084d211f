"""What is in a cubin?

An ELF file, in which each kernel has a section ``.nv.info.SYMBOL``: a list of attributes, each a format, a kind and,
after these two bytes, either a value of 16 bits or the size of a value that follows (as ``cuobjdump -elf`` prints it).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from sgljit_core.errors import ArtifactLoadError

_SIZED = 4  # the format of an attribute whose value follows
_PARAMETERS = (0x17, 0x45)  # EIATTR_KPARAM_INFO, one for each parameter; the other where they exceed 4 KiB


@dataclass(frozen=True)
class Cubin:
    """A device kernel as machine code for one target.

    Attributes:
        image: the ELF file.
        symbol: the kernel's name in it.
        compiler: the version of NVRTC that made it.
    """

    image: bytes
    symbol: str
    compiler: str

    def packed(self) -> bytes:
        """The bytes of an artifact: the ELF file, then the rest; tools that read ELF ignore what follows it."""
        rest = json.dumps([self.symbol, self.compiler]).encode()
        return self.image + rest + len(rest).to_bytes(4, "little")

    @staticmethod
    def unpacked(payload: bytes) -> Cubin:
        """Undo ``packed``. Raises ArtifactLoadError."""
        start = len(payload) - 4 - int.from_bytes(payload[-4:], "little")
        if not payload.startswith(b"\x7fELF") or start < 0:
            raise ArtifactLoadError("it is not a cubin with its kernel's name")
        try:
            symbol, compiler = json.loads(payload[start:-4])
        except ValueError as error:
            raise ArtifactLoadError(f"what follows its cubin cannot be read: {error}") from error
        return Cubin(payload[:start], symbol, compiler)

    def num_params(self) -> int:
        """How many parameters the kernel takes; -1 where the ELF file does not have what this looks for.

        The driver tells the size of each, but their number only by an error for the one after the last, which tools
        such as compute-sanitizer report.
        """
        try:
            return sum(attribute in _PARAMETERS for attribute in _attributes(self.image, f".nv.info.{self.symbol}"))
        except (KeyError, IndexError, ValueError, struct.error):
            return -1


def _attributes(image: bytes, name: str) -> Iterator[int]:
    """The kinds of the attributes in a section of a 64-bit little-endian ELF file."""
    data = _sections(image)[name]
    at = 0
    while at < len(data):
        form, kind, size = struct.unpack_from("<BBH", data, at)
        yield kind
        at += 4 + (size if form == _SIZED else 0)


def _sections(image: bytes) -> dict[str, bytes]:
    """The sections by name. Raises struct.error or IndexError where the file is cut off."""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", image, 0x3A)
    entries = [struct.unpack_from("<IIQQQQ", image, table + i * entry_size) for i in range(count)]
    names = entries[names_index][4]
    sections = {}
    for offset_of_name, _, _, _, offset, size in entries:
        start = names + offset_of_name
        sections[image[start : image.index(b"\0", start)].decode()] = image[offset : offset + size]
    return sections
