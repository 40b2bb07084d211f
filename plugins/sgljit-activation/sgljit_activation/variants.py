"""Which kernels are worth building ahead, and which does a model ask for?

It follows the choice of ``host::RowMap`` for tensors as models have them: without gaps, and aligned to a load.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from sgljit_core import CppType, make_cpp_args

from .ops import FUNCTORS, host_module
from .plugin import FAMILY

if TYPE_CHECKING:
    from sgljit_core.engines.shapes import ModelShape

Builder = Callable[[], Any]

_FILE = "activation.h"
_LOAD_BYTES = 16


def variants() -> Iterator[Builder]:
    """The host part; for each activation and dtype the CPU's loop, and the CUDA kernel for rows of whole loads."""
    yield host_module
    for op in FUNCTORS:
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            yield _on_cpu(op, dtype)
            yield _on_device(op, dtype, _LOAD_BYTES // dtype.itemsize, False)


def model_variants(shape: ModelShape, ops: frozenset[str] | None, device: str) -> Iterator[Builder]:
    """The variants that a model asks for, of the ops that are called; see ``KernelFamily.model_variants``.

    They serve gates beside and before the values: nobody knows which of the two the engine has.
    """
    op = f"{shape.activation}_and_mul"
    if not shape.mlp_sizes or op not in FUNCTORS or (ops is not None and op not in ops):
        return
    yield host_module
    dtype = getattr(torch, shape.dtype)
    if device == "cpu":
        yield _on_cpu(op, dtype)
        return
    whole = _LOAD_BYTES // dtype.itemsize
    choices = set()
    for size in shape.mlp_sizes:
        choices.add((min(whole, size & -size), False))  # side by side: the largest power of two that divides the row
        if size % whole:  # apart: one long row, whose last load may be incomplete
            choices |= {(whole, False), (whole, True)}
    for elements, has_tail in sorted(choices):
        yield _on_device(op, dtype, elements, has_tail)


def _on_cpu(op: str, dtype: torch.dtype) -> Builder:
    arguments = make_cpp_args(_functor(op), 2, 1, dtype, dtype)
    return functools.partial(FAMILY.build_deferred, _FILE, f"host::cpu::row_map<{arguments}>")


def _on_device(op: str, dtype: torch.dtype, elements: int, has_tail: bool) -> Builder:
    arguments = (_functor(op), 2, 1, elements, has_tail, dtype, dtype)
    return functools.partial(FAMILY.build_variant, _FILE, "device::row_map", *arguments)


def _functor(op: str) -> CppType:
    return CppType(f"activation::{FUNCTORS[op]}")
