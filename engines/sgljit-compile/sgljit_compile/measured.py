"""On which shapes was an op measured as faster than the code that the compiler makes for its chain?

A row of the table names the pages of bench/results in the project's repository, on which no cell within its ranges has
the op above 1.02 of the compiler's time; a test reads them. Any other shape is the compiler's, unless
``options={"chains": ...}`` asks for an op by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .graphs import is_known

__all__ = ["CHIP", "FORMULAS", "TABLE", "Range", "Shape", "formula_is_faster", "is_measured", "why_not"]

CHIP = (9, 0)  # the compute capability of the H100 and the H200, of which all pages are


class Shape(NamedTuple):
    """The work of an op: ``rows`` of ``size`` elements, whose number may not be known before a graph runs."""

    rows: Any
    size: int
    dtype: torch.dtype


@dataclass(frozen=True)
class Range:
    """Ops that are faster on ``rows`` of ``sizes``, each from the first number to the second."""

    ops: frozenset[str]
    dtypes: frozenset[torch.dtype]
    sizes: tuple[int, int]
    rows: tuple[int, int]
    pages: tuple[str, ...]


# bfloat16 was measured for all ops, and float16, which moves the same bytes, for norms alone.
_HALF = frozenset({torch.bfloat16, torch.float16})
_ALL = _HALF | {torch.float32}
_ADD_NORM, _GEMMA_ADD_NORM = frozenset({"fused_add_rmsnorm"}), frozenset({"gemma_fused_add_rmsnorm"})
_SANDWICH, _GEMMA_SANDWICH = frozenset({"fused_rmsnorm_add_rmsnorm"}), frozenset({"gemma_fused_rmsnorm_add_rmsnorm"})

# Rows are tokens, or sequences for a window. Sizes are those of a token, of a head, of a window, of a row of x, or
# numbers of experts.
TABLE = (
    Range(_ADD_NORM, _HALF, (576, 16384), (1, 16384), ("norm_grid.csv",)),
    Range(_ADD_NORM, frozenset({torch.float32}), (1024, 12288), (1, 16384), ("norm_grid.csv",)),
    Range(_GEMMA_ADD_NORM, _HALF, (1152, 5376), (1, 16384), ("norm_grid.csv",)),
    Range(_SANDWICH, _HALF, (4096, 8192), (1, 16384), ("norm_add_norm.md",)),
    Range(_GEMMA_SANDWICH, _HALF, (2048, 4096), (1, 64), ("compiled.md",)),
    Range(frozenset({"apply_rope_inplace"}), _HALF, (64, 256), (1, 16384), ("rope.md",)),
    Range(frozenset({"apply_rope_inplace_with_kvcache"}), _HALF, (64, 64), (1, 64), ("compiled.md",)),
    Range(
        frozenset({"apply_rope_inplace_with_kvcache", "fused_qk_norm_rope", "fused_qk_norm_rope_with_kvcache"}),
        _HALF,
        (128, 256),
        (1, 16384),
        ("rope.md",),
    ),
    Range(frozenset({"append_to_window"}), _HALF, (128 * 8 * 64, 4096 * 8 * 128), (1, 64), ("kvcache.md",)),
    Range(frozenset({"topk_softmax"}), _ALL, (8, 128), (1, 16384), ("moe.md", "compiled.md")),
    Range(frozenset({"sort_by_expert"}), frozenset({torch.int64}), (8, 256), (1, 16384), ("moe.md", "compiled.md")),
    Range(frozenset({"expert_matvec"}), frozenset({torch.bfloat16}), (768, 4096), (1, 64), ("moe.md", "compiled.md")),
)


# Where the compiler takes less time for a single op than the op and a plain copy together, which a neighbour costs that
# its kernel includes. On a CPU both take as long.
FORMULAS = (
    Range(frozenset({"rmsnorm"}), _HALF, (512, 8192), (1, 16384), ("norm_grid.csv",)),
    Range(frozenset({"gemma_rmsnorm"}), _HALF, (1152, 5376), (1, 16384), ("norm_grid.csv",)),
    Range(frozenset({"silu_and_mul"}), _HALF, (6144, 12288), (1, 16384), ("activation.md",)),
)


def is_measured(device: torch.device) -> bool:
    """Whether the pages are of such a device."""
    is_cuda = device.type == "cuda" and torch.version.hip is None  # ROCm calls a gfx90a 9.0
    return is_cuda and torch.cuda.get_device_capability(device) == CHIP


def why_not(op: str, shape: Shape) -> str:
    """Why an op may be slower than the compiler's code for a shape; empty if the table has it.

    A number of rows that is not known is in every range.
    """
    if _has(TABLE, op, shape):
        return ""
    rows = f"{shape.rows} x {shape.size}" if is_known(shape.rows) else f"rows of {shape.size}"
    return f"nobody measured that {op} is faster for {rows} in {str(shape.dtype).removeprefix('torch.')}"


def formula_is_faster(op: str, shape: Shape, device: torch.device) -> bool:
    """Whether the compiler's code for an op and a neighbour is faster than the op beside that neighbour."""
    return is_measured(device) and _has(FORMULAS, op, shape)


def _has(table: Iterable[Range], op: str, shape: Shape) -> bool:
    return any(
        op in one.ops
        and shape.dtype in one.dtypes
        and one.sizes[0] <= shape.size <= one.sizes[1]
        and (not is_known(shape.rows) or one.rows[0] <= shape.rows <= one.rows[1])
        for one in table
    )
