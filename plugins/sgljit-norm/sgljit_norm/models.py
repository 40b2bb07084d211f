"""Which variants of the norms does a model ask for?

Its tensors are as models have them: rows without gaps, or slices of a projection that begin at a whole load.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from . import kernels
from .ops import host_module
from .plugin import FAMILY

if TYPE_CHECKING:
    from sgljit_core.engines.shapes import ModelShape


def model_variants(shape: ModelShape, ops: frozenset[str] | None, device: str) -> Iterator[Callable[[], Any]]:
    """The variants that a model asks for, of the ops that are called; see ``KernelFamily.model_variants``.

    Queries and keys that are normalised count for the fused op and for ``rmsnorm``, whichever of them is called.
    """
    dtype = getattr(torch, shape.dtype)
    wanted = {name: made for name, made in _kernels(shape, dtype).items() if made and (ops is None or name in ops)}
    if not wanted:
        return
    yield host_module
    if device == "cpu":
        loops = {_loop(name, dtype) for name in wanted}
        yield from (functools.partial(FAMILY.build_deferred, *loop) for loop in sorted(loops))
        return
    for kernel in sorted({kernel for made in wanted.values() for kernel in made}, key=str):
        yield functools.partial(FAMILY.build_variant, *kernel)


def _kernels(shape: ModelShape, dtype: torch.dtype) -> dict[str, list[kernels.Kernel]]:
    """For each op that the model can use, the kernels."""
    if not shape.rms_norm:
        return {}
    plus_one = shape.traits.one_plus
    gemma = "gemma_" * plus_one
    of_head, of_all = shape.traits.qk_norm == "head", shape.traits.qk_norm == "all"
    query, key = shape.query_heads * shape.head_dim, shape.kv_heads * shape.head_dim
    alone = {shape.hidden_size, *shape.latent_sizes}
    alone |= {shape.head_dim} if of_head else set()
    # Whole rows of queries and keys are normalised where all ranks' heads are together.
    alone |= {heads * shape.head_dim for heads in (shape.all_query_heads, shape.all_kv_heads)} if of_all else set()
    rmsnorm, fused_add = _OPERATIONS[f"{gemma}rmsnorm"], _OPERATIONS[f"{gemma}fused_add_rmsnorm"]
    return {
        f"{gemma}rmsnorm": [kernel for size in alone for kernel in rmsnorm.kernels(size, dtype)],
        f"{gemma}fused_add_rmsnorm": fused_add.kernels(shape.hidden_size, dtype),
        f"{gemma}fused_inplace_qknorm": kernels.qknorm(shape.head_dim, dtype, plus_one) if of_head else [],
        "fused_inplace_qknorm_across_heads": kernels.qknorm_across_heads(query, key, dtype) if of_all else [],
    }


_OPERATIONS = {
    "rmsnorm": kernels.RMSNORM,
    "gemma_rmsnorm": kernels.GEMMA_RMSNORM,
    "fused_add_rmsnorm": kernels.FUSED_ADD,
    "gemma_fused_add_rmsnorm": kernels.GEMMA_FUSED_ADD,
}


def _loop(op: str, dtype: torch.dtype) -> tuple[str, str]:
    """The CPU's part of an op."""
    return _OPERATIONS[op].loop(dtype) if op in _OPERATIONS else kernels.QKNORM_ON_CPU
