"""The function users call. Its body is C++: csrc/silu_and_mul.cpp checks, chooses a kernel and launches it."""

from __future__ import annotations

import torch

from .plugin import FAMILY


@FAMILY.op(mutates=("out",), samples="sgljit_silu_and_mul.reference:samples_of_silu_and_mul")
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
