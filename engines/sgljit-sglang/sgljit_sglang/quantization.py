"""SGLang's quantisation of groups to FP8 by a hook, or SGLang's own code for what sgljit does not support."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from sgljit_engines.kernels import Op, try_rows

from .backend import around
from .kernels import left, ran, works

_QUANTIZE = "sglang.kernels.ops.quantization.per_token_group_quant.per_token_group_quant"
_OP = "per_token_group_quant_fp8"
_GROUP_SIZES = (16, 32, 64, 128, 256)  # those that SGLang's own kernel takes

Result = tuple[torch.Tensor, torch.Tensor]


def replace(used: frozenset[str]) -> None:
    """Register the hook.

    Args:
        used: the ops that may be called.
    """
    if _OP in used:
        around(_QUANTIZE, _quantize, _OP)


def _quantize(
    theirs: Callable[..., Result],
    input: torch.Tensor,  # noqa: A002 - as SGLang calls it
    output_q: torch.Tensor | None = None,
    output_s: torch.Tensor | None = None,
    group_size: int = 128,
    *args: Any,
    **options: Any,
) -> Result:
    # An option asks for packed scales, another dtype, a fused activation, or some of the rows.
    is_plain = not args and not any(one is not None and one is not False for one in options.values())
    if output_q is None or output_s is None or not is_plain or not _fits(input, output_q, output_s, group_size):
        left(_OP)
    elif _works(input, group_size) and ran(_OP, input, output_q, output_s, group_size):
        return output_q, output_s
    return theirs(input, output_q, output_s, group_size, *args, **options)


def _fits(x: torch.Tensor, output_q: torch.Tensor, output_s: torch.Tensor, group_size: int) -> bool:
    """Whether rows of bfloat16 become e4m3 with scales of float32. SGLang makes a number of a NaN of another dtype."""
    return (
        x.ndim == 2
        and x.numel() > 0
        and group_size in _GROUP_SIZES
        and x.shape[1] % group_size == 0
        and x.dtype == torch.bfloat16
        and output_q.dtype == torch.float8_e4m3fn
        and output_s.dtype == torch.float32
        and output_q.shape == x.shape
        and output_s.shape == (x.shape[0], x.shape[1] // group_size)
        and x.stride(1) == output_q.stride(1) == 1
        and x.device == output_q.device == output_s.device
    )


def _works(x: torch.Tensor, group_size: int) -> bool:
    size, device = x.shape[1], x.device.type

    def quantize(kernel: Op, tokens: int) -> None:
        rows = x.new_zeros(tokens, size)
        scales = rows.new_empty(tokens, size // group_size, dtype=torch.float32)
        kernel(rows, torch.empty_like(rows, dtype=torch.float8_e4m3fn), scales, group_size)

    def trial(kernel: Op) -> None:
        try_rows(functools.partial(quantize, kernel), size, device)

    return works(_OP, (size, group_size, x.dtype, device), trial)
