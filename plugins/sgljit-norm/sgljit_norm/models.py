"""Which variants of the norms does a model ask for?

It follows the choice of csrc/norm_launch.h for tensors as models have them: rows without gaps, or slices of a
projection that begin at a whole load.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from sgljit_core.compilers.arch import cuda_target

from .ops import host_module
from .plugin import FAMILY

if TYPE_CHECKING:
    from sgljit_core.engines.shapes import ModelShape

_MAX_ROW_BYTES = 64 << 10  # kMaxRowBytes of csrc/norm_params.h


def model_variants(shape: ModelShape, ops: frozenset[str] | None, device: str) -> Iterator[Callable[[], Any]]:
    """The variants that a model asks for, of the ops that are called; see ``KernelFamily.model_variants``.

    Queries and keys that are normalised count for the fused op and for ``rmsnorm``, whichever of them is called.
    """
    kernels = {name: rows for name, rows in _kernels(shape).items() if rows and (ops is None or name in ops)}
    if not kernels:
        return
    yield host_module
    files = {file for rows in kernels.values() for file, _, _ in rows}
    if device == "cpu":
        for file in sorted(files):
            yield functools.partial(FAMILY.build_deferred, f"{file}_cpu.cpp", f"{file}_on_cpu")
        return
    made = {_variant(shape, *row) for rows in kernels.values() for row in rows}
    for file, kernel, *arguments in sorted(made, key=str):
        yield functools.partial(FAMILY.build_variant, f"{file}.cuh", f"norm_kernels::{kernel}", *arguments)


def _kernels(shape: ModelShape) -> dict[str, set[tuple[str, str, tuple[int, ...]]]]:
    """For each op that the model can use, the file, the kernel and the size of the rows."""
    if not shape.rms_norm:
        return {}
    gemma = "gemma_" * shape.traits.one_plus
    of_head, of_all = shape.traits.qk_norm == "head", shape.traits.qk_norm == "all"
    query, key = shape.query_heads * shape.head_dim, shape.kv_heads * shape.head_dim
    alone = {shape.hidden_size, *shape.latent_sizes}
    alone |= {shape.head_dim} if of_head else set()
    # Whole rows of queries and keys are normalised where all ranks' heads are together.
    alone |= {heads * shape.head_dim for heads in (shape.all_query_heads, shape.all_kv_heads)} if of_all else set()
    return {
        f"{gemma}rmsnorm": {("rmsnorm", "rmsnorm", (size,)) for size in alone},
        f"{gemma}fused_add_rmsnorm": {("fused_add_rmsnorm", "fused_add_rmsnorm", (shape.hidden_size,))},
        f"{gemma}fused_inplace_qknorm": {("qknorm", "qknorm", (shape.head_dim,))} if of_head else set(),
        "fused_inplace_qknorm_across_heads": {("qknorm", "qknorm_across_heads", (query, key))} if of_all else set(),
    }


def _variant(shape: ModelShape, file: str, kernel: str, sizes: tuple[int, ...]) -> tuple[Any, ...]:
    """The file, the kernel and its template arguments, as RowsLaunch chooses them."""
    dtype = getattr(torch, shape.dtype)
    flag = () if kernel == "qknorm_across_heads" else (shape.traits.one_plus,)
    widest = 32 if (cuda_target().cuda_arch or (0, 0)) >= (10, 0) else 16
    row_bytes = [size * dtype.itemsize for size in sizes]
    load_bytes = min(widest, *(size & -size for size in row_bytes))  # the largest power of two that divides all
    if load_bytes >= 16 and sum(row_bytes) <= _MAX_ROW_BYTES:
        return (file, kernel, *sizes, load_bytes, *flag, dtype)
    elements = min(load_bytes, 16) // dtype.itemsize
    return (file, f"{file}_any_size", elements, shape.traits.one_plus, dtype)
