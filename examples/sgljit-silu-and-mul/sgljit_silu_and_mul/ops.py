"""The function users call. Its body is C++: csrc/silu_and_mul.cpp checks, chooses a kernel and launches it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from sgljit_core import cache_once
from sgljit_core.model.row_kernels import RowMapping

from .plugin import FAMILY

if TYPE_CHECKING:
    from tvm_ffi import Module


@cache_once
def host_module() -> Module:
    """The host part: the checks, and the choice of a kernel."""
    return FAMILY.load_host(
        "silu_and_mul", cpp_files=["silu_and_mul.cpp"], cpp_wrappers=[("silu_and_mul", "silu_and_mul")]
    )


@FAMILY.op(exports=host_module, mutates=("out",), samples="sgljit_silu_and_mul.reference:samples_of_silu_and_mul")
def silu_and_mul(
    input: torch.Tensor,  # as torch.nn.functional calls it
    out: torch.Tensor,
) -> None:
    """``silu(input[:, :hidden]) * input[:, hidden:]`` into ``out``.

    The activation of a SwiGLU layer, equation 6 of https://arxiv.org/abs/2002.05202, with ``silu(x) = x / (1 +
    exp(-x))``. Computed in float32 and rounded once, at the end.

    Args:
        input: [..., 2 * hidden], float16, bfloat16 or float32, on a CUDA device or the CPU; rows at any one stride.
        out: [..., hidden], of float16, bfloat16 or float32 and the input's device; as many rows, at any one stride.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor is not as above.
        ValueError: ``out`` shares memory with ``input``, other than row by row.
    """


ROW_MAPS = [RowMapping("silu_and_mul.h", "swiglu::SiluAndMul", inputs=2)]  # one for each host::RowMap in csrc


def variants() -> Iterator[Callable[[], Any]]:
    """The variants worth building ahead: the host part; for each dtype the loop for the CPU and a kernel for CUDA."""
    yield host_module
    for row_map in ROW_MAPS:
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            yield functools.partial(FAMILY.build_deferred, *row_map.loop(dtype))
            yield functools.partial(FAMILY.build_variant, *row_map.kernel(dtype))
