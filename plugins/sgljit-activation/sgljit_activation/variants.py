"""Which kernels are worth building ahead, and which does a model ask for?

It follows the choice of ``host::RowMap`` for tensors as models have them: without gaps, and aligned to a load.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from sgljit_core.model.row_kernels import WORD, RowMapping

from .ops import FUNCTORS, host_module
from .plugin import FAMILY

if TYPE_CHECKING:
    from sgljit_core.engines.shapes import ModelShape

Builder = Callable[[], Any]

ROW_MAPS = {op: RowMapping("activation.h", f"activation::{functor}", inputs=2) for op, functor in FUNCTORS.items()}


def variants() -> Iterator[Builder]:
    """The host part; for each activation and dtype the CPU's loop, and the CUDA kernel for rows of whole loads."""
    yield host_module
    for row_map in ROW_MAPS.values():
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            yield _on_cpu(row_map, dtype)
            yield _on_device(row_map, dtype)


def model_variants(shape: ModelShape, ops: frozenset[str] | None, device: str) -> Iterator[Builder]:
    """The variants that a model asks for, of the ops that are called; see ``KernelFamily.model_variants``.

    They serve gates beside and before the values: nobody knows which of the two the engine has.
    """
    op = f"{shape.activation}_and_mul"
    if not shape.mlp_sizes or op not in ROW_MAPS or (ops is not None and op not in ops):
        return
    yield host_module
    row_map, dtype = ROW_MAPS[op], getattr(torch, shape.dtype)
    if device == "cpu":
        yield _on_cpu(row_map, dtype)
        return
    whole = WORD // dtype.itemsize
    choices = set()
    for size in shape.mlp_sizes:
        choices.add((min(whole, size & -size), False))  # side by side: the largest power of two that divides the row
        if size % whole:  # apart: one long row, whose last load may be incomplete
            choices |= {(whole, False), (whole, True)}
    for elements, has_tail in sorted(choices):
        yield _on_device(row_map, dtype, elements=elements, has_tail=has_tail)


def _on_cpu(row_map: RowMapping, dtype: torch.dtype) -> Builder:
    return functools.partial(FAMILY.build_deferred, *row_map.loop(dtype))


def _on_device(row_map: RowMapping, dtype: torch.dtype, **rows: Any) -> Builder:
    return functools.partial(FAMILY.build_variant, *row_map.kernel(dtype, **rows))
