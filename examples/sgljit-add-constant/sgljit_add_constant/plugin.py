"""What the family is, as data: this is all that sgljit imports before the first call."""

from __future__ import annotations

from collections.abc import Callable

from sgljit_core import KernelFamily, Op, hookimpl

FAMILY = KernelFamily(
    name="add_constant",
    package="sgljit_add_constant",
    ops=(
        Op(
            "add_constant",
            "sgljit_add_constant.ops:add_constant",
            fake="sgljit_add_constant.ops:add_constant_fake",
            reference="sgljit_add_constant.reference:add_constant",
            samples="sgljit_add_constant.reference:samples",
        ),
    ),
)


@hookimpl
def sgljit_register_kernels(register: Callable[[KernelFamily], None]) -> None:
    """Declare the family."""
    register(FAMILY)
