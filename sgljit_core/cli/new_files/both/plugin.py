"""The family, as data. The entry point in pyproject.toml names this module, which imports no torch."""

from __future__ import annotations

from collections.abc import Callable

from sgljit_core import KernelFamily, hookimpl

FAMILY = KernelFamily(name="$family", package="$package", variants="$package.ops:variants")


@hookimpl
def sgljit_register_kernels(register: Callable[[KernelFamily], None]) -> None:
    """Declare the family."""
    register(FAMILY)
