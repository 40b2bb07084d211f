"""Arguments for each op, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator

import torch

RMSNormArgs = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, float]


def rmsnorm(device: torch.device) -> Iterator[RMSNormArgs]:
    """Every dtype, hidden sizes of every kernel, from no token to several blocks of them, in place, strided rows."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for hidden_size in (1, 65, 64, 256, 1024, 4096):
            weight = torch.randn(hidden_size, device=device).to(dtype)
            for num_tokens in (0, 1, 3, 129):
                x = torch.randn(num_tokens, 2 * hidden_size, device=device).to(dtype)
                dense, strided = x[:, :hidden_size].contiguous(), x[:, hidden_size:]
                yield dense, weight, torch.empty_like(dense), 1e-6
                yield strided, weight, None, 1e-5
