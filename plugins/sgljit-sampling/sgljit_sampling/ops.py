"""The functions users call. Their bodies are C++: csrc/sampling.cpp checks, chooses a kernel and launches it."""

from __future__ import annotations

import torch

from .plugin import FAMILY


@FAMILY.op(mutates=("output",))
def softmax(
    input: torch.Tensor,  # noqa: A002 - PyTorch's name
    output: torch.Tensor,
) -> None:
    """The softmax along the last dimension, computed in float32 and rounded once, in one launch.

    A row that has a NaN or an infinity, or only -infinity, becomes NaN as in PyTorch. No row: a no-op.

    Args:
        input: [..., vocabulary], float16, bfloat16 or float32, on a CUDA device or the CPU. Elements of a row have no
            gaps; the dimensions before the last must be at one stride.
        output: of the input's shape, float16, bfloat16 or float32, with a row stride of its own. It may be ``input``.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: ``output`` shares memory with itself, or with other rows of ``input``.
    """


@FAMILY.op(mutates=("output",))
def argmax(
    input: torch.Tensor,  # noqa: A002 - PyTorch's name
    output: torch.Tensor,
) -> None:
    """The index of the largest element of each row, of the first among equal ones, in one launch.

    NaN is above all numbers, as in PyTorch: the first NaN is the largest element. No row: a no-op.

    Args:
        input: [..., vocabulary] as in ``softmax``; a vocabulary has at least one element and less than 2**31.
        output: [...], int32 or int64; written.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: ``output`` shares memory with itself or with ``input``.
    """
