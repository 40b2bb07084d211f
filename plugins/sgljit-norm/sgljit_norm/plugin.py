"""What the family is, as data: this is all that sgljit imports before the first call."""

from __future__ import annotations

from collections.abc import Callable

from sgljit_core import KernelFamily, Op, hookimpl

FAMILY = KernelFamily(
    name="norm",
    package="sgljit_norm",
    ops=(
        Op(
            "rmsnorm",
            "sgljit_norm.ops:rmsnorm",
            mutates=("input", "out"),
            reference="sgljit_norm.reference:rmsnorm",
            samples="sgljit_norm.samples:rmsnorm",
        ),
    ),
    variants="sgljit_norm.ops:variants",
)


@hookimpl
def sgljit_register_kernels(register: Callable[[KernelFamily], None]) -> None:
    """Declare the family."""
    register(FAMILY)
