"""What the family is, as data: this is all that sgljit imports before the first call."""

from __future__ import annotations

from collections.abc import Callable

from sgljit_core import KernelFamily, Op, hookimpl


def _op(name: str, *mutates: str) -> Op:
    return Op(
        name,
        f"sgljit_norm.ops:{name}",
        mutates=mutates,
        reference=f"sgljit_norm.reference:{name}",
        samples=f"sgljit_norm.samples:{name}",
    )


FAMILY = KernelFamily(
    name="norm",
    package="sgljit_norm",
    ops=(
        _op("rmsnorm", "input", "out"),
        _op("gemma_rmsnorm", "input", "out"),
        _op("fused_add_rmsnorm", "input", "residual"),
        _op("gemma_fused_add_rmsnorm", "input", "residual"),
        _op("fused_inplace_qknorm", "q", "k"),
        _op("gemma_fused_inplace_qknorm", "q", "k"),
        _op("fused_inplace_qknorm_across_heads", "q", "k"),
        _op("layernorm", "input", "out"),
    ),
    variants="sgljit_norm.ops:variants",
)


@hookimpl
def sgljit_register_kernels(register: Callable[[KernelFamily], None]) -> None:
    """Declare the family."""
    register(FAMILY)
