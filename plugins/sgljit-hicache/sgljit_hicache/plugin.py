"""What the family is, as data: this is all that sgljit imports before the first call."""

from __future__ import annotations

from collections.abc import Callable

from sgljit_core import KernelFamily, Op, hookimpl


def _transfer(name: str, mutates: tuple[str, ...]) -> Op:
    return Op(
        name,
        f"sgljit_hicache.ops:{name}",
        mutates=mutates,
        reference=f"sgljit_hicache.reference:{name}",
        samples=f"sgljit_hicache.samples:{name}",
    )


FAMILY = KernelFamily(
    name="hicache",
    package="sgljit_hicache",
    ops=(
        _transfer("transfer_hicache_one_layer", mutates=("k_cache_dst", "v_cache_dst")),
        _transfer("transfer_hicache_one_layer_mla", mutates=("cache_dst",)),
        # What is written to stands behind the addresses: to a graph, the tensor of addresses is the state.
        _transfer("transfer_hicache_all_layer", mutates=("k_ptr_dst", "v_ptr_dst")),
        _transfer("transfer_hicache_all_layer_mla", mutates=("ptr_dst",)),
        Op("can_use_hicache_jit_kernel", "sgljit_hicache.ops:can_use_hicache_jit_kernel"),
    ),
    variants="sgljit_hicache.ops:variants",
)


@hookimpl
def sgljit_register_kernels(register: Callable[[KernelFamily], None]) -> None:
    """Declare the family."""
    register(FAMILY)
