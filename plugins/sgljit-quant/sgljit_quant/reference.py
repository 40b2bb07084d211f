"""The ops in plain PyTorch and float32; the kernels must equal them byte by byte."""

from __future__ import annotations

import torch

E4M3_MAX = 448.0
INT8_MAX = 127.0
SMALLEST_SCALE = 2.0**-126  # the smallest normal float32: its inverse is finite
LARGEST_SCALE = torch.finfo(torch.float32).max
NAN = 0x7F


def per_tensor_quant_fp8(
    input: torch.Tensor,  # noqa: A002 - the name that engines pass it by
    output_q: torch.Tensor,
    output_s: torch.Tensor,
    is_static: bool = False,
) -> None:
    """One scale for the whole tensor: given, or computed from its largest magnitude and written to ``output_s``."""
    if not is_static:
        output_s.copy_(_scale(input.reshape(1, -1)).view(output_s.shape))
    output_q.copy_(_quantized(input, output_s.reshape(())))


def per_token_quant_fp8(
    input: torch.Tensor,  # noqa: A002 - the name that engines pass it by
    output_q: torch.Tensor,
    output_s: torch.Tensor,
) -> None:
    """One scale for each row along the last dimension, written to ``output_s``."""
    scale = _scale(input)
    output_s.copy_(scale.view(output_s.shape))
    output_q.copy_(_quantized(input, scale))


def per_token_group_quant_fp8(
    input: torch.Tensor,  # noqa: A002 - the name that engines pass it by
    output_q: torch.Tensor,
    output_s: torch.Tensor,
    group_size: int = 128,
    *,
    eps: float = 1e-10,
    scale_ue8m0: bool = False,
) -> None:
    """One scale for each group of a row, written to ``output_s``; with ``scale_ue8m0`` the next power of two."""
    groups = input.unflatten(-1, (-1, group_size))
    least = groups.new_full((*groups.shape[:-1], 1), eps, dtype=torch.float32)
    scale = _scale(torch.cat([groups.float(), least], -1))
    if scale_ue8m0:
        fraction, exponent = torch.frexp(scale.double())
        scale = torch.exp2((exponent - (fraction == 0.5).int()).clamp(max=127).double()).float()
    output_q.copy_(_quantized(groups, scale).flatten(-2))
    if output_s.dtype is not torch.int32:
        output_s.copy_(scale.squeeze(-1))
        return
    biased = torch.log2(scale).squeeze(-1).long() + 127
    for group in range(biased.shape[-1]):
        word, shift = output_s[..., group // 4], 8 * (group % 4)
        bits = (word.long() & ~(0xFF << shift)) | (biased[..., group] << shift)
        word.copy_((bits & 0xFFFFFFFF).where(bits & 0x80000000 == 0, (bits & 0xFFFFFFFF) - (1 << 32)))


def masked_group_quant_fp8(
    input: torch.Tensor,  # noqa: A002 - the name that engines pass it by
    output_q: torch.Tensor,
    output_s: torch.Tensor,
    counts: torch.Tensor,
    *,
    eps: float = 1e-10,
    scale_ue8m0: bool = False,
) -> None:
    """The first ``counts[e]`` tokens of each expert, one expert after the other."""
    for x, q, scales, count in zip(input, output_q, output_s, counts.tolist(), strict=True):
        per_token_group_quant_fp8(x[:count], q[:count], scales[:count], eps=eps, scale_ue8m0=scale_ue8m0)


def per_token_quant_int8(
    input: torch.Tensor,  # noqa: A002 - the name that engines pass it by
    output_q: torch.Tensor,
    output_s: torch.Tensor,
) -> None:
    """One scale for each row along the last dimension, written to ``output_s``."""
    scale = _scale(input, INT8_MAX)
    output_s.copy_(scale.view(output_s.shape))
    output_q.copy_(_rounded(input, scale))


def per_token_group_quant_int8(
    input: torch.Tensor,  # noqa: A002 - the name that engines pass it by
    output_q: torch.Tensor,
    output_s: torch.Tensor,
    group_size: int = 128,
    *,
    eps: float = 1e-10,
) -> None:
    """One scale for each group of a row, written to ``output_s``."""
    groups = input.unflatten(-1, (-1, group_size))
    least = groups.new_full((*groups.shape[:-1], 1), eps, dtype=torch.float32)
    scale = _scale(torch.cat([groups.float(), least], -1), INT8_MAX)
    output_s.copy_(scale.squeeze(-1))
    output_q.copy_(_rounded(groups, scale).flatten(-2))


def _scale(rows: torch.Tensor, limit: float = E4M3_MAX) -> torch.Tensor:
    """[..., 1]: the largest magnitude of each row divided by ``limit``, ignoring NaN."""
    magnitudes = rows.float().abs().nan_to_num(nan=0.0, posinf=float("inf"))
    zero = magnitudes.new_zeros((*rows.shape[:-1], 1))
    largest = torch.cat([magnitudes, zero], -1).amax(-1, keepdim=True)
    # A tensor as divisor: on CUDA, PyTorch divides by a number by multiplying with its rounded inverse.
    return (largest / torch.full_like(largest, limit)).clamp(SMALLEST_SCALE, LARGEST_SCALE)


def _quantized(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """NaN has two bytes in e4m3; this is the positive one, which GPUs store."""
    q = (x.float() * scale.reciprocal()).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    is_nan = q.float().isnan()
    return torch.where(is_nan, NAN, q.view(torch.uint8)).to(torch.uint8).view(torch.float8_e4m3fn)


def _rounded(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """In int8, 0 for NaN."""
    return (x.float() * scale.reciprocal()).nan_to_num(nan=0.0).round().clamp(-128, 127).to(torch.int8)
