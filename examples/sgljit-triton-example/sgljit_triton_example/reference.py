"""The op in plain PyTorch, and arguments to compare the two on: `sgljit test` does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch


def moe_sum(
    input: torch.Tensor,
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


def samples_of_moe_sum(device: torch.device) -> Iterator[dict[str, Any]]:
    """Every dtype, with and without weights; dense and strided rows, whole blocks and not; no token and no expert."""
    for dtype, (tokens, k, hidden) in itertools.product(
        (torch.bfloat16, torch.float16, torch.float32), ((0, 8, 64), (1, 8, 1024), (5, 3, 1000), (4, 1, 1), (2, 0, 7))
    ):
        both = torch.randn(tokens, k, 2 * hidden, device=device).to(dtype)
        output = torch.empty(tokens, 2 * hidden, dtype=dtype, device=device)
        yield {"input": both[..., :hidden].contiguous(), "output": output[:, :hidden].contiguous()}
        weights = torch.rand(k, tokens, device=device).t()
        strided = {"input": both[..., hidden:], "output": output[:, hidden:], "topk_weights": weights}
        yield {**strided, "routed_scaling_factor": 2.5}
