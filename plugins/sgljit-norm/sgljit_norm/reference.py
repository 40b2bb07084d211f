"""The ops in plain PyTorch and float64: what the kernels are compared with."""

from __future__ import annotations

import torch


def rmsnorm(
    input: torch.Tensor,  # noqa: A002 - as torch.nn.functional.rms_norm calls it
    weight: torch.Tensor,
    out: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> None:
    """``input / sqrt(mean(input**2, -1) + eps) * weight``, into ``out`` or in place.

    Root mean square layer normalisation, equation 4 of https://arxiv.org/abs/1910.07467, with ``eps`` under the root
    as in ``torch.nn.functional.rms_norm``. Computed in float64 on the input's device and rounded once, to the dtype of
    the destination: give a float64 ``out`` to see the result unrounded.
    """
    x = input.double()
    result = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.double()
    (input if out is None else out).copy_(result)
