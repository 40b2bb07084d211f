"""The op in plain PyTorch, and arguments to compare the two on."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def silu_and_mul(
    input: torch.Tensor,  # the op's name for it
    out: torch.Tensor,
) -> None:
    """The expected result, in float64 and rounded once."""
    gate, value = input.double().chunk(2, dim=-1)
    out.copy_(torch.nn.functional.silu(gate) * value)


def samples_of_silu_and_mul(device: torch.device) -> Iterator[dict[str, torch.Tensor]]:
    """Arguments: every dtype, no token, one, several; one element, a block of threads and its neighbours."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for num_tokens in (0, 1, 3, 100):
            for hidden in (1, 255, 256, 257, 1024):
                x = (torch.randn(num_tokens, 2 * hidden, device=device) * 4).to(dtype)
                out = torch.full((num_tokens, hidden), float("nan"), device=device, dtype=dtype)
                yield {"input": x, "out": out}
