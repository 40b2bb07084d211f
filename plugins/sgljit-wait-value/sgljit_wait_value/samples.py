"""Arguments for each op by name, for tests and benchmarks. No wait of them is endless."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

Sample = dict[str, Any]


def stream_wait_value(device: torch.device) -> Iterator[Sample]:
    """Both widths, every condition, met."""
    for dtype in (torch.int32, torch.int64):
        for seen, value, condition in ((1, 1, "eq"), (7, 3, "ge"), (6, 2, "and"), (5, 2, "nor"), (-1, -5, "ge")):
            flag = torch.tensor([seen, 99], dtype=dtype, device=device)
            yield {"flag": flag, "value": value, "condition": condition}


def stream_write_value(device: torch.device) -> Iterator[Sample]:
    """Both widths, the extremes."""
    for dtype in (torch.int32, torch.int64):
        for value in (0, 1, -1, torch.iinfo(dtype).min, torch.iinfo(dtype).max):
            yield {"flag": torch.tensor([42, 99], dtype=dtype, device=device), "value": value}
