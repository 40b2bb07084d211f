"""The kernels behind the ops, by the names and template arguments that the C++ side gives them: for building ahead."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

from sgljit_core.model.row_kernels import RowReduction, row_elements, row_layouts

if TYPE_CHECKING:
    import torch

Kernel: TypeAlias = "tuple[Any, ...]"  # the arguments of KernelFamily.build_variant

RMSNORM = RowReduction("norm.h", "norms::RMSNorm<false>", 1, 1)
GEMMA_RMSNORM = RowReduction("norm.h", "norms::RMSNorm<true>", 1, 1)
FUSED_ADD = RowReduction("norm.h", "norms::FusedAddRMSNorm<false>", 2, 1, 2)
GEMMA_FUSED_ADD = RowReduction("norm.h", "norms::FusedAddRMSNorm<true>", 2, 1, 2)
LAYERNORM = RowReduction("norm.h", "norms::LayerNorm", 1, 2, two_passes=True)
LAYERNORM_WITHOUT_BIAS = RowReduction("norm.h", "norms::LayerNorm", 1, 1, two_passes=True)

QKNORM_ON_CPU = ("qknorm_cpu.cpp", "qknorm_on_cpu")


def qknorm(head_dim: int, dtype: torch.dtype, plus_one: bool) -> list[Kernel]:
    """The kernel of ``fused_inplace_qknorm``, for any number of heads above one."""
    elements = row_elements(head_dim, dtype.itemsize)
    return [
        ("qknorm.cuh", "norms::qknorm", plus_one, head_dim, elements, *layout, dtype)
        for layout in row_layouts(head_dim, elements, dtype.itemsize)
    ] or [qknorm_generic(elements, dtype, plus_one)]


def qknorm_across_heads(q_size: int, k_size: int, dtype: torch.dtype) -> list[Kernel]:
    """The kernel of ``fused_inplace_qknorm_across_heads``."""
    elements = min(row_elements(size, dtype.itemsize) for size in (q_size, k_size))
    longer = max(q_size, k_size)
    if not (q_size and k_size and row_layouts(longer, elements, dtype.itemsize)):
        return [qknorm_generic(elements, dtype, False)]
    vectors = longer // elements
    threads = {32 * math.ceil(math.ceil(vectors / held) / 32) for held in (3, 4) if held == 4 or vectors <= 3 * 1024}
    return [
        ("qknorm.cuh", "norms::qknorm_across_heads", q_size, k_size, elements, of_block, dtype)
        for of_block in sorted(threads)
    ]


def qknorm_generic(elements: int, dtype: torch.dtype, plus_one: bool) -> Kernel:
    """The kernel of both, for heads of any size."""
    return ("qknorm.cuh", "norms::qknorm_generic", plus_one, elements, dtype)
