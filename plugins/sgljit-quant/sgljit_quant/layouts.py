"""Layouts of scales that matrix products take."""

from __future__ import annotations

import torch


def column_major_scales(tokens: int, groups: int, device: torch.device | str | None = None) -> torch.Tensor:
    """A new tensor for the scales of groups, [tokens, groups] of float32, uninitialised, as DeepGEMM takes it.

    The scales of one group of all tokens lie side by side, and begin at a multiple of 16 bytes, so that TMA loads them.
    """
    padded = (tokens + 3) // 4 * 4
    return torch.empty(groups, padded, dtype=torch.float32, device=device).t()[:tokens]


def packed_scales(tokens: int, hidden: int, device: torch.device | str | None = None) -> torch.Tensor:
    """A new tensor for the exponents of groups of 128, [tokens, ceil(hidden / 512)] of int32, as DeepGEMM takes them.

    Each word has those of four groups of a token, plus 127, the first in its lowest byte. The words of all tokens lie
    side by side, and begin at a multiple of 16 bytes. Uninitialised, but zeros where a last word has less than four.
    """
    words, padded = -(-hidden // 512), (tokens + 3) // 4 * 4
    make = torch.empty if hidden % 512 == 0 else torch.zeros
    return make(words, padded, dtype=torch.int32, device=device).t()[:tokens]
