"""What the family is, as data: this is all that sgljit imports before the first call."""

from __future__ import annotations

from collections.abc import Callable

from sgljit_core import KernelFamily, Op, hookimpl

FAMILY = KernelFamily(
    name="silu_and_mul",
    package="sgljit_silu_and_mul",
    ops=(
        Op(
            "silu_and_mul",
            "sgljit_silu_and_mul.ops:silu_and_mul",
            mutates=("out",),
            reference="sgljit_silu_and_mul.reference:silu_and_mul",
            samples="sgljit_silu_and_mul.reference:samples",
        ),
    ),
    variants="sgljit_silu_and_mul.ops:variants",
)


@hookimpl
def sgljit_register_kernels(register: Callable[[KernelFamily], None]) -> None:
    """Declare the family."""
    register(FAMILY)
