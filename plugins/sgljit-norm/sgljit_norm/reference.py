"""The ops in plain PyTorch and float64, to compare the kernels with.

Each computes in float64 on its input's device and rounds once, to the dtype of the destination: give float64 tensors
where a destination is written, to see the result unrounded.
"""

from __future__ import annotations

import torch


def rmsnorm(
    input: torch.Tensor,  # noqa: A002 - the name in torch.nn.functional.rms_norm
    weight: torch.Tensor,
    out: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> None:
    """``input / sqrt(mean(input**2, -1) + eps) * weight``, into ``out`` or in place.

    Root mean square layer normalisation, equation 4 of https://arxiv.org/abs/1910.07467, with ``eps`` under the root
    as in ``torch.nn.functional.rms_norm``.
    """
    x = input.double()
    result = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.double()
    (input if out is None else out).copy_(result)


def gemma_rmsnorm(
    input: torch.Tensor,  # noqa: A002 - as in rmsnorm
    weight: torch.Tensor,
    out: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> None:
    """``rmsnorm`` with ``1 + weight``, as Gemma's checkpoints store it."""
    rmsnorm(input, 1 + weight.double(), out, eps)


def fused_add_rmsnorm(
    input: torch.Tensor,  # noqa: A002 - as in rmsnorm
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    round_first: bool = False,
) -> None:
    """``residual = input + residual``, then ``input = rmsnorm(residual)``, from the sum before or after rounding."""
    total = input.double() + residual.double()
    if round_first:
        total = _rounded(total, residual.dtype)
    residual.copy_(total)
    rmsnorm(total, weight, None, eps)
    input.copy_(total)


def gemma_fused_add_rmsnorm(
    input: torch.Tensor,  # noqa: A002 - as in rmsnorm
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    round_first: bool = False,
) -> None:
    """``fused_add_rmsnorm`` with ``1 + weight``."""
    fused_add_rmsnorm(input, residual, 1 + weight.double(), eps, round_first=round_first)


def fused_rmsnorm_add_rmsnorm(
    input: torch.Tensor,  # noqa: A002 - as in rmsnorm
    residual: torch.Tensor,
    weight: torch.Tensor,
    next_weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    round_first: bool = False,
) -> None:
    """``residual = rmsnorm(input) + residual``, then ``input = rmsnorm(residual)``, rounded where stored, or each."""
    normed = input.double()
    rmsnorm(normed, weight, None, eps)
    if round_first:
        normed = _rounded(normed, input.dtype)
    total = normed + residual.double()
    if round_first:
        total = _rounded(total, residual.dtype)
    residual.copy_(total)
    rmsnorm(total, next_weight, None, eps)
    input.copy_(total)


def gemma_fused_rmsnorm_add_rmsnorm(
    input: torch.Tensor,  # noqa: A002 - as in rmsnorm
    residual: torch.Tensor,
    weight: torch.Tensor,
    next_weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    round_first: bool = False,
) -> None:
    """``fused_rmsnorm_add_rmsnorm`` with ``1 + weight``."""
    weights = 1 + weight.double(), 1 + next_weight.double()
    fused_rmsnorm_add_rmsnorm(input, residual, *weights, eps, round_first=round_first)


def fused_inplace_qknorm(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    head_dim: int = 0,
) -> None:
    """``rmsnorm`` over each head of ``q`` and of ``k``."""
    for x, weight in ((q, q_weight), (k, k_weight)):
        heads = x.unflatten(-1, (-1, head_dim or x.shape[-1]))
        rmsnorm(heads, weight, None, eps)


def gemma_fused_inplace_qknorm(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    head_dim: int = 0,
) -> None:
    """``fused_inplace_qknorm`` with ``1 + weight``."""
    fused_inplace_qknorm(q, k, 1 + q_weight.double(), 1 + k_weight.double(), eps, head_dim=head_dim)


def fused_inplace_qknorm_across_heads(
    q: torch.Tensor, k: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, eps: float = 1e-6
) -> None:
    """``rmsnorm`` over all heads of a token together."""
    rmsnorm(q, q_weight, None, eps)
    rmsnorm(k, k_weight, None, eps)


def layernorm(
    input: torch.Tensor,  # noqa: A002 - the name in torch.nn.functional.layer_norm
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> None:
    """``(input - mean) / sqrt(variance + eps) * weight + bias``, into ``out`` or in place.

    Layer normalisation, equation 4 of https://arxiv.org/abs/1607.06450, with the variance over all elements and ``eps``
    under the root as in ``torch.nn.functional.layer_norm``.
    """
    x = input.double()
    x = x - x.mean(-1, keepdim=True)
    result = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.double()
    (input if out is None else out).copy_(result if bias is None else result + bias.double())


def rmsnorm_quant(
    input: torch.Tensor,  # noqa: A002 - as in rmsnorm
    weight: torch.Tensor,
    output_q: torch.Tensor,
    output_s: torch.Tensor,
    eps: float = 1e-6,
    *,
    is_static: bool = False,
    round_first: bool = False,
    scale_ue8m0: bool = False,
) -> None:
    """``rmsnorm`` in FP8 or int8. With a float64 tensor as ``output_q``: the quotient that is rounded to it."""
    y = input.new_empty(input.shape, dtype=torch.float64)
    rmsnorm(input, weight, y, eps)
    _quantize(_rounded(y, input.dtype) if round_first else y, output_q, output_s, is_static, scale_ue8m0)


def fused_add_rmsnorm_quant(
    input: torch.Tensor,  # noqa: A002 - as in rmsnorm
    residual: torch.Tensor,
    weight: torch.Tensor,
    output_q: torch.Tensor,
    output_s: torch.Tensor,
    eps: float = 1e-6,
    *,
    is_static: bool = False,
    round_first: bool = False,
    scale_ue8m0: bool = False,
) -> None:
    """``fused_add_rmsnorm`` in FP8 or int8: the residual gets the sum, and ``input`` stays."""
    y = input.double() + residual.double()
    if round_first:
        y = _rounded(y, residual.dtype)
    residual.copy_(y)
    rmsnorm(y, weight, None, eps)
    _quantize(_rounded(y, input.dtype) if round_first else y, output_q, output_s, is_static, scale_ue8m0)


def _rounded(y: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.float64:  # a check that widens the arguments asks again with the kernel's own
        raise TypeError("what is rounded first is rounded to the dtype of the kernel's input, which is not float64")
    return y.to(dtype).double()


def _quantize(
    y: torch.Tensor, output_q: torch.Tensor, output_s: torch.Tensor, is_static: bool, scale_ue8m0: bool
) -> None:
    is_int8 = output_q.dtype is torch.int8
    limit = 127 if is_int8 else 448
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


def _power(scale: torch.Tensor) -> torch.Tensor:
    """The smallest power of two that is not below, and 2**127 at most."""
    fraction, exponent = torch.frexp(scale)
    return torch.exp2((exponent - (fraction == 0.5).int()).clamp(max=127).double())


def _pack(scale: torch.Tensor, words: torch.Tensor) -> None:
    """Exponents of powers of two, plus 127, as bytes of words."""
    bytes_ = words.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    bytes_[:, : scale.shape[1]] = torch.log2(scale) + 127
    words.copy_(bytes_.view(torch.int32))
