"""The op in plain PyTorch."""

from __future__ import annotations

import torch


def moe_sum(
    input: torch.Tensor,  # noqa: A002 - the op's name for it
    output: torch.Tensor,
    topk_weights: torch.Tensor | None = None,
    *,
    routed_scaling_factor: float = 1.0,
) -> None:
    """Rounded once, to the dtype of ``output``."""
    rows = input.double()
    if topk_weights is not None:
        rows = rows * topk_weights.double()[..., None]
    output.copy_(rows.sum(1) * routed_scaling_factor)
