"""What does a plugin declare, and how does it build its own modules?"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import paths
from .loader import load_jit
from .spec import FamilySpec

if TYPE_CHECKING:
    from tvm_ffi import Module

__all__ = ["KernelFamily"]


@dataclass(frozen=True)
class KernelFamily(FamilySpec):
    """A family that can build its modules; see ``FamilySpec`` for the fields.

    >>> FAMILY = KernelFamily(name="norm", package="sgljit_norm", ops=(Op("rmsnorm", "sgljit_norm.ops:rmsnorm"),))
    """

    @functools.cached_property
    def csrc(self) -> Path:
        """The directory of the family's sources: ``csrc/`` inside its package."""
        return paths.package_directory(self.package) / "csrc"

    def load_jit(self, *args: str, **options: Any) -> Module:
        """``sgljit_core.load_jit`` on the family's own sources; the same keywords."""
        return load_jit(*args, **{"csrc": self.csrc, "family": self.name, **options})
