"""The family, as data. The entry point in pyproject.toml names this module, which imports no torch."""

from __future__ import annotations

from collections.abc import Callable

from sgljit_core import KernelFamily, hookimpl

FAMILY = KernelFamily(name="add_constant", package="sgljit_add_constant", variants="sgljit_add_constant.ops:variants")


@hookimpl
def sgljit_register_kernels(register: Callable[[KernelFamily], None]) -> None:
    """Declare the family."""
    register(FAMILY)
