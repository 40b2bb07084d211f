"""Positions on several axes, as tokens of images have them: a row of angles for each token of a step."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch


def mrope_table(
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    sections: Sequence[int],
    *,
    is_interleaved: bool = False,
) -> torch.Tensor:
    """The cosines and sines of each token, where its pairs turn by positions on several axes (Qwen2-VL, Qwen3-VL).

    Every op that takes a ``cos_sin_cache`` takes this table, with the positions 0, 1, ... of the tokens in a step. One
    table serves all layers. It is made by PyTorch's own kernels.

    Args:
        cos_sin_cache: [positions, rope_dim], as in ``apply_rope_inplace``.
        positions: [axes, tokens], int32 or int64: of time, height and width. One out of range is refused as PyTorch's
            indexing does it.
        sections: the number of pairs of each axis, rope_dim / 2 in all, ``mrope_section`` in a config. In the order of
            the axes: the first pairs are those of the first axis.
        is_interleaved: whether the axes alternate from pair to pair, as Qwen3-VL has them: with three axes, pair i is
            of axis i % 3, until an axis has all of its own; what is left is of the first axis.

    Returns:
        [tokens, rope_dim], of the dtype of ``cos_sin_cache``.

    Raises:
        ValueError: the sections do not fit the axes of ``positions`` or the pairs of ``cos_sin_cache``.
    """
    sections = tuple(sections)
    if positions.dim() != 2 or len(positions) != len(sections):
        raise ValueError(
            f"mrope_table(): expected positions of {len(sections)} axes, one for each section, [{len(sections)}, "
            f"tokens], got {list(positions.shape)}"
        )
    if cos_sin_cache.dim() != 2 or 2 * sum(sections) != cos_sin_cache.shape[1]:
        raise ValueError(
            f"mrope_table(): the sections have {sum(sections)} pairs, so expected cos_sin_cache with "
            f"{2 * sum(sections)} columns, got {list(cos_sin_cache.shape)}"
        )
    axes, columns = _axes(sections, is_interleaved, cos_sin_cache.device)
    return cos_sin_cache[positions[axes].t().contiguous(), columns]  # which lies as its index does


@functools.lru_cache(maxsize=64)
def _axes(sections: tuple[int, ...], is_interleaved: bool, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The axis of each column of the table, and the columns' numbers. Kept: a copy to a device is slow."""
    axes = [axis for axis, pairs in enumerate(sections) for _ in range(pairs)]
    if is_interleaved:
        axes = [i % len(sections) if i < len(sections) * sections[i % len(sections)] else 0 for i in range(len(axes))]
    return torch.tensor(2 * axes, device=device), torch.arange(2 * len(axes), device=device)
