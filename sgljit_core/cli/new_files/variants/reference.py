"""The op in plain PyTorch, and arguments to compare the two on: `sgljit test` does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def $op(x: torch.Tensor, out: torch.Tensor, scale: float = 1.0) -> None:
    """The expected result. `sgljit test` calls it with float64."""
    out.copy_(scale * x)


def samples(device: torch.device) -> Iterator[dict[str, Any]]:
    """Calls, by the names of the arguments: every dtype and option, sizes around a block of threads."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for rows, columns in ((0, 64), (1, 1), (3, 255), (3, 256), (3, 257), (100, 1024)):
            x = torch.randn(rows, columns, device=device).to(dtype)
            yield {"x": x, "out": torch.empty_like(x), "scale": 0.5}
