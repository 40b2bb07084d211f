"""Positions on several axes, as tokens of images have them: a row of angles for each token of a step."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence

import torch

from sgljit_core.errors import TensorMatchError

_TABLES = (torch.float32, torch.float16, torch.bfloat16)
_INDICES = (torch.int32, torch.int64)


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
        positions: [axes, tokens], int32 or int64: of time, height and width. On the CPU one out of range is refused; on
            CUDA only with ``SGLJIT_CHECK_INDICES=1``, which makes the host wait. Under ``torch.compile`` nobody looks.
        sections: the number of pairs of each axis, rope_dim / 2 in all, ``mrope_section`` in a config. In the order of
            the axes: the first pairs are those of the first axis.
        is_interleaved: whether the axes alternate from pair to pair, as Qwen3-VL has them: with three axes, pair i is
            of axis i % 3, until an axis has all of its own; what is left is of the first axis.

    Returns:
        [tokens, rope_dim], of the dtype of ``cos_sin_cache``.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's dtype or device is not as above; the sections do not fit the
            axes of ``positions`` or the pairs of ``cos_sin_cache``; a position is out of range.
        ValueError: a section is no number of pairs.
    """
    sections = tuple(sections)
    if not all(isinstance(pairs, int) and pairs >= 0 for pairs in sections):  # type: ignore[redundant-expr]
        raise ValueError(f"mrope_table(): expected sections of 0 pairs or more, whole numbers, got {sections}")
    for name, tensor, dtypes in (("cos_sin_cache", cos_sin_cache, _TABLES), ("positions", positions, _INDICES)):
        if tensor.dtype not in dtypes:
            *expected, got = (str(dtype).removeprefix("torch.") for dtype in (*dtypes, tensor.dtype))
            raise TensorMatchError(f"mrope_table(): expected {name} of one of [{', '.join(expected)}], got {got}")
    if positions.device != cos_sin_cache.device:
        raise TensorMatchError(
            f"mrope_table(): expected positions on {cos_sin_cache.device}, the device of cos_sin_cache, got "
            f"{positions.device}"
        )
    if positions.dim() != 2 or len(positions) != len(sections):
        raise TensorMatchError(
            f"mrope_table(): expected positions of {len(sections)} axes, one for each section, [{len(sections)}, "
            f"tokens], got {list(positions.shape)}"
        )
    if cos_sin_cache.dim() != 2 or 2 * sum(sections) != cos_sin_cache.shape[1]:
        raise TensorMatchError(
            f"mrope_table(): the sections have {sum(sections)} pairs, so expected cos_sin_cache with "
            f"{2 * sum(sections)} columns, got {list(cos_sin_cache.shape)}"
        )
    if not torch.compiler.is_compiling() and _checks_indices(positions.is_cpu):
        _refuse_beyond(positions, len(cos_sin_cache))
    axes, columns = _axes(sections, is_interleaved, cos_sin_cache.device)
    return cos_sin_cache[positions[axes].t().contiguous(), columns]  # which lies as its index does


def _refuse_beyond(positions: torch.Tensor, rows: int) -> None:
    """PyTorch takes a negative position for one from the end."""
    beyond = (positions < 0) | (positions >= rows)
    if beyond.any():
        axis, token = beyond.nonzero()[0].tolist()
        raise TensorMatchError(
            f"mrope_table(): index out of range: positions[{axis}, {token}] is {positions[axis, token].item()}, and "
            f"cos_sin_cache has {rows} rows"
        )


@functools.cache
def _checks_indices(otherwise: bool) -> bool:
    """As the ops decide it: ``checks_indices`` in sgl_kernel/memory_rows.h."""
    if setting := os.environ.get("SGLJIT_CHECK_INDICES"):
        return setting != "0"
    return otherwise or os.environ.get("SGLJIT_CHECK") == "1"


@functools.lru_cache(maxsize=64)
def _axes(sections: tuple[int, ...], is_interleaved: bool, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The axis of each column of the table, and the columns' numbers. Kept: a copy to a device is slow."""
    axes = [axis for axis, pairs in enumerate(sections) for _ in range(pairs)]
    if is_interleaved:
        axes = [i % len(sections) if i < len(sections) * sections[i % len(sections)] else 0 for i in range(len(axes))]
    return torch.tensor(2 * axes, device=device), torch.arange(2 * len(axes), device=device)
