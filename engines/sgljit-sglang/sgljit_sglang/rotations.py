"""SGLang's rotary position embedding by hooks, or SGLang's own code for what sgljit does not support.

The hooks are around the functions that launch SGLang's kernels, which all its rotary embeddings share. Cosines and
sines, and the choice of the heads that are rotated, stay SGLang's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sgljit_engines.kernels import DTYPES, Op, try_rows

from .backend import around
from .kernels import left, ran, works

_MODULE = "sglang.kernels.ops.attention.rope"
_ROTATE = "apply_rope_inplace"
_ROTATE_AND_STORE = "apply_rope_inplace_with_kvcache"

Run = Callable[..., Any]


def replace(used: frozenset[str]) -> None:
    """Register the hooks.

    Args:
        used: the ops that may be called.
    """
    if _ROTATE in used:
        around(f"{_MODULE}.{_ROTATE}", _rotate, _ROTATE, _turned)
    if _ROTATE_AND_STORE in used:
        around(f"{_MODULE}.{_ROTATE_AND_STORE}", _rotate_and_store, _ROTATE_AND_STORE, _stored)


def _rotate(
    theirs: Callable[..., None],
    q: torch.Tensor,
    k: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    *,
    is_neox: bool,
    rope_dim: int = 0,
) -> None:
    if not _fits(q, k, cos_sin_cache, positions, rope_dim):
        left(_ROTATE)
    elif _works(_ROTATE, (q, k), cos_sin_cache, positions, is_neox) and ran(
        _ROTATE, q, k, cos_sin_cache, positions, is_neox=is_neox
    ):
        return
    theirs(q, k, cos_sin_cache, positions, is_neox=is_neox, rope_dim=rope_dim)


def _rotate_and_store(
    theirs: Callable[..., None],
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    out_loc: torch.Tensor,
    *,
    is_neox: bool,
    rope_dim: int = 0,
) -> None:
    fits = _fits(q, k, cos_sin_cache, positions, rope_dim)
    if not (fits and _can_store(k, v, k_cache, v_cache, positions, out_loc)):
        left(_ROTATE_AND_STORE)
    elif _works(_ROTATE_AND_STORE, (q, k), cos_sin_cache, positions, is_neox):
        caches = [cache.unflatten(1, k.shape[1:]) for cache in (k_cache, v_cache)]
        arguments = (q, k, v.view(k.shape), *caches, cos_sin_cache, positions, out_loc)
        if ran(_ROTATE_AND_STORE, *arguments, is_neox=is_neox):
            return
    theirs(q, k, v, k_cache, v_cache, cos_sin_cache, positions, out_loc, is_neox=is_neox, rope_dim=rope_dim)


def _turned(
    run: Run, q: torch.Tensor, k: torch.Tensor, cos_sin_cache: torch.Tensor, positions: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, ...]:
    """The heads that a call turns, without a copy of all cosines and sines."""
    places = torch.arange(len(positions), dtype=positions.dtype, device=positions.device)
    (q, k, *_), _ = run(q, k, cos_sin_cache[positions], places, **options)
    return q, k


def _stored(
    run: Run,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    out_loc: torch.Tensor,
    **options: Any,
) -> tuple[torch.Tensor, ...]:
    """The heads that a call turns, and the rows that it stores, in caches for these alone."""
    places = torch.arange(len(positions), dtype=positions.dtype, device=positions.device)
    caches = [cache.new_zeros(1 + len(k), cache.shape[1]) for cache in (k_cache, v_cache)]  # slot 0 is padding's
    angles = cos_sin_cache[positions]
    (q, k, _, k_rows, v_rows, *_), _ = run(q, k, v, *caches, angles, places, places.to(out_loc.dtype) + 1, **options)
    return q, k, k_rows, v_rows


def _fits(
    q: torch.Tensor, k: torch.Tensor, cos_sin_cache: torch.Tensor, positions: torch.Tensor, rope_dim: int
) -> bool:
    """Whether whole heads of q and k are rotated, by cosines and sines in float32, as SGLang's own kernel does."""
    size = cos_sin_cache.shape[-1]
    return (
        q.ndim == k.ndim == 3
        and positions.ndim == 1
        and len(q) == len(k) == len(positions) > 0
        and q.shape[2] == k.shape[2] == size
        and q.shape[1] > 0
        and k.shape[1] > 0
        and rope_dim in (0, size)
        and q.dtype == k.dtype
        and q.dtype in DTYPES
        and cos_sin_cache.dtype == torch.float32
        and cos_sin_cache.is_contiguous()
        and positions.is_contiguous()
        and positions.dtype in (torch.int32, torch.int64)
        and q.device == k.device == cos_sin_cache.device == positions.device
        and _has_rows_of_its_own(q)
        and _has_rows_of_its_own(k)
        and q is not k
    )


def _has_rows_of_its_own(x: torch.Tensor) -> bool:
    """Whether elements of a head have no gaps, and neither heads nor tokens overlap, as those of an expanded tensor."""
    return x.stride(2) == 1 and x.stride(1) >= x.shape[2] and (len(x) == 1 or x.stride(0) >= x.shape[1] * x.stride(1))


def _is_like(v: torch.Tensor, k: torch.Tensor) -> bool:
    """Whether v has the heads of k, apart or in one row, and they follow each other without gaps."""
    if v.ndim == 2:
        return v.shape == (len(k), k.shape[1] * k.shape[2]) and v.stride(1) == 1
    return v.shape == k.shape and v.stride(2) == 1 and v.stride(1) == v.shape[2]


def _can_store(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    positions: torch.Tensor,
    out_loc: torch.Tensor,
) -> bool:
    row = k.shape[1] * k.shape[2]
    return (
        k_cache.ndim == v_cache.ndim == 2
        and k_cache.shape[1] == v_cache.shape[1] == row
        and k_cache.stride(1) == v_cache.stride(1) == 1
        and k.dtype == v.dtype == k_cache.dtype == v_cache.dtype
        and _is_like(v, k)
        and out_loc.shape == positions.shape
        and out_loc.dtype == positions.dtype
        and out_loc.is_contiguous()
        and k.device == v.device == k_cache.device == v_cache.device == out_loc.device
    )


def _works(
    name: str,
    heads: tuple[torch.Tensor, torch.Tensor],
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    is_neox: bool,
) -> bool:
    size, counts = heads[0].shape[2], tuple(one.shape[1] for one in heads)
    dtype, device = heads[0].dtype, heads[0].device

    def trial(kernel: Op) -> None:
        def rotate(tokens: int) -> None:
            index = positions.new_zeros(tokens)
            q, k, v = (torch.zeros(tokens, count, size, dtype=dtype, device=device) for count in (*counts, counts[1]))
            stored, slots = ([v, k.new_zeros(k[:1].shape), k.new_zeros(k[:1].shape)], [index]) if stores else ([], [])
            kernel(q, k, *stored, cos_sin_cache.new_zeros(1, size), index, *slots, is_neox=is_neox)

        try_rows(rotate, sum(counts) * size, device.type)

    stores, form = name == _ROTATE_AND_STORE, "neox" if is_neox else "interleaved"
    return works(name, (*counts, size, form, dtype, positions.dtype, device.type), trial)
