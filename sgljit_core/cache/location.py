"""Where the artifacts of a build lie below a root."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Location:
    """Where a build's artifacts live below a root: one directory for each toolchain."""

    target: str
    family: str
    module: str
    source_key: str

    @property
    def path(self) -> Path:
        return Path(self.target, self.family or "_", self.module, self.source_key)
