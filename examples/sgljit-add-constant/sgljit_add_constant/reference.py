"""The op in plain PyTorch, and arguments to compare the two on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def add_constant(src: torch.Tensor, constant: int) -> torch.Tensor:
    """The expected result."""
    return src + constant


def samples_of_add_constant(device: torch.device) -> Iterator[dict[str, Any]]:
    """Arguments: no element, one, a block of threads and its neighbours, the ends of the int32 range."""
    limits = torch.iinfo(torch.int32)
    for length in (0, 1, 255, 256, 257, 100_000):
        for constant in (0, 7, limits.min, limits.max):
            src = torch.randint(limits.min, limits.max, (length,), dtype=torch.int32, device=device)
            yield {"src": src, "constant": constant}
