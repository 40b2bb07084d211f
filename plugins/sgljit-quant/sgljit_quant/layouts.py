"""Layouts of scales that matrix products take."""

from __future__ import annotations

import torch


def column_major_scales(tokens: int, groups: int, device: torch.device | str | None = None) -> torch.Tensor:
    """A new tensor for the scales of groups, [tokens, groups] of float32, uninitialised, as DeepGEMM takes it.

    The scales of one group of all tokens lie side by side, and begin at a multiple of 16 bytes, so that TMA loads them.
    """
    padded = (tokens + 3) // 4 * 4
    return torch.empty(groups, padded, dtype=torch.float32, device=device).t()[:tokens]
