"""The family, as data. sgljit imports nothing else of the package before an op is asked for."""

from __future__ import annotations

from collections.abc import Callable

from sgljit_core import KernelFamily, hookimpl

FAMILY = KernelFamily(
    name="activation",
    package="sgljit_activation",
    variants="sgljit_activation.variants:variants",
    model_variants="sgljit_activation.variants:model_variants",
)


@hookimpl
def sgljit_register_kernels(register: Callable[[KernelFamily], None]) -> None:
    """Declare the family."""
    register(FAMILY)
