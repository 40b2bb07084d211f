"""Layouts of scales that matrix products take."""

from __future__ import annotations

from collections.abc import Callable

import torch


def column_major_scales(
    tokens: int, groups: int, device: torch.device | str | None = None, *, experts: int | None = None
) -> torch.Tensor:
    """A new tensor for the scales of groups, [tokens, groups] of float32, uninitialised, as DeepGEMM takes it.

    The scales of one group of all tokens lie side by side, and begin at a multiple of 16 bytes, so that TMA loads them.
    With ``experts`` it is [experts, tokens, groups], each expert's as above.
    """
    return _columns(torch.empty, tokens, groups, torch.float32, device, experts)


def packed_scales(
    tokens: int, hidden: int, device: torch.device | str | None = None, *, experts: int | None = None
) -> torch.Tensor:
    """A new tensor for the exponents of groups of 128, [tokens, ceil(hidden / 512)] of int32, as DeepGEMM takes them.

    Each word has those of four groups of a token, plus 127, the first in its lowest byte. The words of all tokens lie
    side by side, and begin at a multiple of 16 bytes. Uninitialised, but zeros where a last word has less than four.
    With ``experts`` it is [experts, tokens, ceil(hidden / 512)], each expert's as above.
    """
    make = torch.empty if hidden % 512 == 0 else torch.zeros
    return _columns(make, tokens, -(-hidden // 512), torch.int32, device, experts)


def _columns(
    make: Callable[..., torch.Tensor],
    tokens: int,
    columns: int,
    dtype: torch.dtype,
    device: torch.device | str | None,
    experts: int | None,
) -> torch.Tensor:
    outer, padded = () if experts is None else (experts,), (tokens + 3) // 4 * 4
    return make((*outer, columns, padded), dtype=dtype, device=device).mT[..., :tokens, :]
