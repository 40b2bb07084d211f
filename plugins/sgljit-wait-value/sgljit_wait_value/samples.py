"""Arguments for each op by name, for tests and benchmarks. No wait is endless; on CUDA each comes in two modes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

Sample = dict[str, Any]


def stream_wait_value(device: torch.device) -> Iterator[Sample]:
    """Both widths, every condition, met."""
    for dtype in (torch.int32, torch.int64):
        for seen, value, condition in ((1, 1, "eq"), (7, 3, "ge"), (6, 2, "and"), (5, 2, "nor"), (-1, -5, "ge")):
            for mode in _modes(device):
                flag = torch.tensor([seen, 99], dtype=dtype, device=device)
                yield {"flag": flag, "value": value, "condition": condition, "mode": mode}


def stream_write_value(device: torch.device) -> Iterator[Sample]:
    """Both widths, the extremes."""
    for dtype in (torch.int32, torch.int64):
        for value in (0, 1, -1, torch.iinfo(dtype).min, torch.iinfo(dtype).max):
            for mode in _modes(device):
                yield {"flag": torch.tensor([42, 99], dtype=dtype, device=device), "value": value, "mode": mode}


def _modes(device: torch.device) -> list[str]:
    return ["auto", "kernel"] if device.type == "cuda" else ["auto"]
