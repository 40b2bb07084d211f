"""The family, as data. sgljit imports nothing else of the package before an op is asked for."""

from __future__ import annotations

from collections.abc import Callable

from sgljit_core import KernelFamily, hookimpl

FAMILY = KernelFamily(
    name="norm",
    package="sgljit_norm",
    variants="sgljit_norm.ops:variants",
    model_variants="sgljit_norm.models:model_variants",
)


@hookimpl
def sgljit_register_kernels(register: Callable[[KernelFamily], None]) -> None:
    """Declare the family."""
    register(FAMILY)
