"""What is in the artifact of a kernel?"""

from __future__ import annotations

import json
from typing import NamedTuple

from sgljit_core.errors import ArtifactLoadError


class Cubin(NamedTuple):
    """A device kernel as machine code for one target: the ELF file, and the kernel's name in it.

    ``signature`` is the symbol of ``sgl::signature`` for its type; ``compiler`` the version of NVRTC that made it.
    """

    image: bytes
    symbol: str
    signature: str
    compiler: str

    def packed(self) -> bytes:
        """The bytes of an artifact: the ELF file, then the rest; tools that read ELF ignore what follows it."""
        rest = json.dumps(self[1:]).encode()
        return self.image + rest + len(rest).to_bytes(4, "little")

    @staticmethod
    def unpacked(payload: bytes, name: str) -> Cubin:
        """Undo ``packed``. Raises ArtifactLoadError."""
        start = len(payload) - 4 - int.from_bytes(payload[-4:], "little")
        if not payload.startswith(b"\x7fELF") or start < 0:
            raise ArtifactLoadError(f"{name} is not a cubin with its kernel's name")
        try:
            return Cubin(payload[:start], *json.loads(payload[start:-4]))
        except (ValueError, TypeError) as error:
            raise ArtifactLoadError(f"what follows the cubin of {name} cannot be read: {error}") from error
