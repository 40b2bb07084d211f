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
) -> None:
    """``residual = input + residual``, then ``input = rmsnorm(residual)``, from the sum before it is rounded."""
    total = input.double() + residual.double()
    residual.copy_(total)
    rmsnorm(total, weight, None, eps)
    input.copy_(total)


def gemma_fused_add_rmsnorm(
    input: torch.Tensor,  # noqa: A002 - as in rmsnorm
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
) -> None:
    """``fused_add_rmsnorm`` with ``1 + weight``."""
    fused_add_rmsnorm(input, residual, 1 + weight.double(), eps)


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
