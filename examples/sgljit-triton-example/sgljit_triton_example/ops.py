"""The function users call. Its body checks, chooses constants, and launches the kernel."""

from __future__ import annotations

import torch
from sgljit_core.errors import TensorMatchError
from sgljit_triton import TritonKernels

from .plugin import FAMILY

TRITON = TritonKernels(FAMILY)
SUM = TRITON.kernel("moe_sum.py", "moe_sum")

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@TRITON.op(mutates=("output",), samples="sgljit_triton_example.reference:samples_of_moe_sum")
def moe_sum(
    input: torch.Tensor,
    output: torch.Tensor,
    topk_weights: torch.Tensor | None = None,
    *,
    routed_scaling_factor: float = 1.0,
) -> None:
    """The sum of the results of each token's experts, weighted if there are weights, in one launch.

    ``output[t] = routed_scaling_factor * sum(topk_weights[t, i] * input[t, i])``, added in float32 from the first
    expert to the last and rounded once. No token: a no-op; no expert: zeros.

    Args:
        input: [tokens, k, hidden], float16, bfloat16 or float32, on a CUDA device; on the CPU Triton's interpreter
            runs it. Tokens and experts may be any distance apart; elements of a row may not.
        output: [tokens, hidden], of the dtype of ``input``; rows may be apart; written.
        topk_weights: [tokens, k], float32, with any strides.
        routed_scaling_factor: of each sum.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: ``output`` shares memory with itself or another argument.
    """
    if input.dim() != 3 or input.dtype not in _DTYPES:
        raise _mismatch("input", input, "[tokens, k, hidden] of float16, bfloat16 or float32")
    tokens, experts, hidden = input.shape
    if output.shape != (tokens, hidden) or output.dtype != input.dtype or output.device != input.device:
        raise _mismatch("output", output, f"[{tokens}, {hidden}] of {input.dtype} on {input.device}")
    token_stride, expert_stride, element_stride = input.stride()
    output_stride, output_element_stride = output.stride()
    if hidden > 1 and (element_stride != 1 or output_element_stride != 1):
        raise _mismatch(*(("input", input) if element_stride != 1 else ("output", output)), "elements side by side")
    if tokens > 1 and output_stride < hidden:
        raise ValueError(f"moe_sum: rows of output share memory with each other: strides {output.stride()}")
    weight_strides: tuple[int, ...] = (0, 0)
    if topk_weights is not None:
        if (
            topk_weights.shape != (tokens, experts)
            or topk_weights.dtype != torch.float32
            or topk_weights.device != input.device
        ):
            raise _mismatch("topk_weights", topk_weights, f"[{tokens}, {experts}] of float32 on {input.device}")
        weight_strides = topk_weights.stride()
        _refuse_shared(output, "topk_weights", topk_weights)
    _refuse_shared(output, "input", input)
    block = 1024 if hidden >= 1024 else 128
    SUM.bind(EXPERTS=experts, BLOCK=block)(
        (tokens, -(-hidden // block), 1),
        input,
        output,
        topk_weights,
        hidden,
        token_stride,
        expert_stride,
        output_stride,
        *weight_strides,
        float(routed_scaling_factor),
    )


def _mismatch(name: str, tensor: torch.Tensor, expected: str) -> TensorMatchError:
    got = f"{list(tensor.shape)} of {tensor.dtype} on {tensor.device}, strides {tensor.stride()}"
    return TensorMatchError(f"moe_sum: {name}: expected {expected}, got {got}")


def _refuse_shared(output: torch.Tensor, name: str, other: torch.Tensor) -> None:
    """Raise ValueError where the places of two tensors, from the first element to the last, meet."""
    begin, end = _place(output)
    other_begin, other_end = _place(other)
    if begin < other_end and other_begin < end:
        raise ValueError(f"moe_sum: output shares memory with {name}")


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    begin, last = tensor.data_ptr(), 0
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if size == 0:
            return begin, begin
        last += (size - 1) * stride
    return begin, begin + (last + 1) * tensor.itemsize
