"""The ops in plain PyTorch and float64, to compare the kernels with.

Each rounds once, to the dtype of ``out``: give a float64 tensor to see the result unrounded. PyTorch's own gelu adds
one to erf or tanh, which leaves no digit of small results.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch


def silu_and_mul(
    input: torch.Tensor,  # noqa: A002 - as the op
    out: torch.Tensor | None = None,
    up: torch.Tensor | None = None,
    *,
    round_first: bool = False,
) -> torch.Tensor:
    """``silu(gate) * up``."""
    return _activated(lambda x: x * torch.sigmoid(x), input, out, up, round_first)


def gelu_and_mul(
    input: torch.Tensor,  # noqa: A002 - as the op
    out: torch.Tensor | None = None,
    up: torch.Tensor | None = None,
    *,
    round_first: bool = False,
) -> torch.Tensor:
    """``gelu(gate) * up``."""
    return _activated(lambda x: x / 2 * torch.special.erfc(-x / math.sqrt(2)), input, out, up, round_first)


def gelu_tanh_and_mul(
    input: torch.Tensor,  # noqa: A002 - as the op
    out: torch.Tensor | None = None,
    up: torch.Tensor | None = None,
    *,
    round_first: bool = False,
) -> torch.Tensor:
    """``gelu(gate) * up``, approximated by tanh."""
    twice = 2 * math.sqrt(2 / math.pi)
    return _activated(lambda x: x * torch.sigmoid(twice * (x + 0.044715 * x**3)), input, out, up, round_first)


def clamped_swiglu(
    input: torch.Tensor,  # noqa: A002 - as the op
    out: torch.Tensor | None = None,
    up: torch.Tensor | None = None,
    *,
    alpha: float = 1.702,
    limit: float = 7.0,
    is_interleaved: bool = False,
    round_first: bool = False,
) -> torch.Tensor:
    """``(up + 1) * gate * sigmoid(alpha * gate)`` of what is within the limit."""
    if is_interleaved:
        gate, values = input[..., ::2], input[..., 1::2]
    else:
        gate, values = input.chunk(2, dim=-1) if up is None else (input, up)

    def rounded(x: torch.Tensor) -> torch.Tensor:
        return _rounded(x, input.dtype) if round_first else x

    limited, values = rounded(gate.double().clamp(max=limit)), rounded(values.double().clamp(-limit, limit))
    share = rounded(torch.sigmoid(rounded(alpha * limited)))
    result = rounded(values + 1) * rounded(limited * share)
    return result.to(input.dtype) if out is None else out.copy_(result)


def silu_and_mul_quant(
    input: torch.Tensor,  # noqa: A002 - as the op
    output_q: torch.Tensor,
    output_s: torch.Tensor,
    *,
    is_static: bool = False,
    round_first: bool = False,
    scale_ue8m0: bool = False,
    round_each: bool = False,
) -> None:
    """``silu(gate) * up`` in FP8 or int8. With a float64 tensor as ``output_q``: the quotient for FP8, not rounded."""
    y = silu_and_mul(input, input.new_empty(output_q.shape, dtype=torch.float64), round_first=round_each)
    _quantize(input, y, output_q, output_s, is_static, round_first or round_each, scale_ue8m0)


def clamped_swiglu_quant(
    input: torch.Tensor,  # noqa: A002 - as the op
    output_q: torch.Tensor,
    output_s: torch.Tensor,
    up: torch.Tensor | None = None,
    *,
    alpha: float = 1.702,
    limit: float = 7.0,
    is_static: bool = False,
    round_first: bool = False,
    scale_ue8m0: bool = False,
    round_each: bool = False,
    is_interleaved: bool = False,
) -> None:
    """``clamped_swiglu`` in FP8 or int8, as ``silu_and_mul_quant`` is of ``silu_and_mul``."""
    y = input.new_empty(output_q.shape, dtype=torch.float64)
    options = {"is_interleaved": is_interleaved, "round_first": round_each}
    clamped_swiglu(input, y, up, alpha=alpha, limit=limit, **options)
    _quantize(input, y, output_q, output_s, is_static, round_first or round_each, scale_ue8m0)


def _quantize(
    input: torch.Tensor,  # noqa: A002 - as the ops
    y: torch.Tensor,
    output_q: torch.Tensor,
    output_s: torch.Tensor,
    is_static: bool,
    round_first: bool,
    scale_ue8m0: bool,
) -> None:
    is_int8 = output_q.dtype is torch.int8
    limit = 127 if is_int8 else 448
    if round_first:
        y = _rounded(y, input.dtype)
    if is_static:
        quotient = y / output_s.double()
    else:
        is_packed = output_s.dtype is torch.int32
        count = y.shape[-1] // 128 if is_packed else output_s.shape[-1]
        groups = y.reshape(len(output_s), count, y.shape[-1] // max(1, count))
        largest = groups.abs().nan_to_num(nan=0.0, posinf=float("inf")).amax(-1)
        scale = (largest / limit).clamp(2.0**-126, torch.finfo(torch.float32).max)
        scale = _power(scale) if scale_ue8m0 else scale
        if is_packed:
            _pack(scale, output_s)
        else:
            output_s.copy_(scale)
            scale = output_s.double()
        quotient = (groups / scale[..., None]).reshape(output_q.shape)
    output_q.copy_(quotient.nan_to_num(nan=0.0).round().clamp(-128, 127) if is_int8 else quotient.clamp(-448, 448))


def silu_and_mul_masked_quant(
    input: torch.Tensor,  # noqa: A002 - as the op
    output_q: torch.Tensor,
    output_s: torch.Tensor,
    counts: torch.Tensor,
    *,
    round_first: bool = False,
    scale_ue8m0: bool = False,
    round_each: bool = False,
) -> None:
    """The first ``counts[e]`` tokens of each expert, one expert after the other."""
    for x, q, scales, count in zip(input, output_q, output_s, counts.tolist(), strict=True):
        options = {"round_first": round_first, "scale_ue8m0": scale_ue8m0, "round_each": round_each}
        silu_and_mul_quant(x[:count], q[:count], scales[:count], **options)


def clamped_swiglu_masked_quant(
    input: torch.Tensor,  # noqa: A002 - as the op
    output_q: torch.Tensor,
    output_s: torch.Tensor,
    counts: torch.Tensor,
    *,
    alpha: float = 1.702,
    limit: float = 7.0,
    round_first: bool = False,
    scale_ue8m0: bool = False,
    round_each: bool = False,
    is_interleaved: bool = False,
) -> None:
    """The first ``counts[e]`` tokens of each expert, one expert after the other."""
    run = functools.partial(
        clamped_swiglu_quant,
        alpha=alpha,
        limit=limit,
        round_first=round_first,
        scale_ue8m0=scale_ue8m0,
        round_each=round_each,
        is_interleaved=is_interleaved,
    )
    for x, q, scales, count in zip(input, output_q, output_s, counts.tolist(), strict=True):
        run(x[:count], q[:count], scales[:count])


def _rounded(y: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.float64:  # a check that widens the arguments asks again with the kernel's own
        raise TypeError("what is rounded first is rounded to the dtype of the kernel's input, which is not float64")
    return y.to(dtype).double()


def _power(scale: torch.Tensor) -> torch.Tensor:
    """The smallest power of two that is not below, and 2**127 at most."""
    fraction, exponent = torch.frexp(scale)
    return torch.exp2((exponent - (fraction == 0.5).int()).clamp(max=127).double())


def _pack(scale: torch.Tensor, words: torch.Tensor) -> None:
    """Exponents of powers of two, plus 127, as bytes of words."""
    bytes_ = words.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    bytes_[:, : scale.shape[1]] = torch.log2(scale) + 127
    words.copy_(bytes_.view(torch.int32))


def _activated(
    activation: Callable[[torch.Tensor], torch.Tensor],
    input: torch.Tensor,  # noqa: A002 - as the op
    out: torch.Tensor | None,
    up: torch.Tensor | None,
    round_first: bool,
) -> torch.Tensor:
    gate, values = input.chunk(2, dim=-1) if up is None else (input, up)
    activated = activation(gate.double())
    result = (_rounded(activated, input.dtype) if round_first else activated) * values.double()
    return result.to(input.dtype) if out is None else out.copy_(result)
