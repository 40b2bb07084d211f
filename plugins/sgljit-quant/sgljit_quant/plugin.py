"""What the family is, as data: this is all that sgljit imports before the first call."""

from __future__ import annotations

from collections.abc import Callable

from sgljit_core import KernelFamily, Op, hookimpl


def _op(name: str) -> Op:
    return Op(
        name,
        f"sgljit_quant.ops:{name}",
        mutates=("output_q", "output_s"),
        reference=f"sgljit_quant.reference:{name}",
        samples=f"sgljit_quant.samples:{name}",
    )


FAMILY = KernelFamily(
    name="quant",
    package="sgljit_quant",
    ops=(_op("per_tensor_quant_fp8"), _op("per_token_quant_fp8")),
    variants="sgljit_quant.ops:variants",
)


@hookimpl
def sgljit_register_kernels(register: Callable[[KernelFamily], None]) -> None:
    """Declare the family."""
    register(FAMILY)
