"""SGLang's stores of keys and values by hooks, or SGLang's own code for what sgljit does not support.

SGLang's kernels skip slot 0, where a CUDA graph's padding goes, and ours write it. That is harmless: pools keep this
slot for such rows, no request owns it, and SGLang's rotation with a store writes it, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sgljit_engines.kernels import Op, try_rows

from .backend import around
from .kernels import left, ran, works

_KVCACHE = "sglang.kernels.ops.kvcache"
_STORE = "store_cache"
_STORE_MLA = "set_mla_kv_buffer"
_SKIPPED = (0, -1)  # the slot of padding, or none

Run = Callable[..., Any]


def replace(used: frozenset[str]) -> None:
    """Register the hooks.

    Args:
        used: the ops that may be called.
    """
    if _STORE in used:
        around(f"{_KVCACHE}.kvcache.{_STORE}", _store, _STORE, _stored)
    if _STORE_MLA in used:
        around(f"{_KVCACHE}.{_STORE_MLA}.{_STORE_MLA}", _store_mla, _STORE_MLA, _stored_mla)


def _store(
    theirs: Callable[..., None],
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    indices: torch.Tensor,
    **options: Any,
) -> None:
    # The sizes and bounds among the options are those of the tensors.
    fits = all(_fits(pair, indices) and pair[0].shape[1] == pair[1].shape[1] for pair in ((k, k_cache), (v, v_cache)))
    if not fits or options.get("reserved_skip_index", 0) not in _SKIPPED:
        left(_STORE)
    elif _works(_STORE, (k, v), indices) and ran(_STORE, k, v, k_cache, v_cache, indices):
        return
    theirs(k, v, k_cache, v_cache, indices, **options)


def _store_mla(
    theirs: Callable[..., None],
    kv_buffer: torch.Tensor,
    loc: torch.Tensor,
    cache_k_nope: torch.Tensor,
    cache_k_rope: torch.Tensor,
    *args: Any,
    reserved_skip_index: int = 0,
) -> None:
    # One head may have a dimension of its own.
    buffer, nope, rope = (
        one[:, 0] if one.ndim == 3 and one.shape[1] == 1 else one for one in (kv_buffer, cache_k_nope, cache_k_rope)
    )
    fits = _fits((buffer, nope, rope), loc) and nope.shape[1] + rope.shape[1] == buffer.shape[1]
    if not fits or reserved_skip_index not in _SKIPPED:
        left(_STORE_MLA)
    elif _works(_STORE_MLA, (nope, rope), loc) and ran(_STORE_MLA, buffer, loc, nope, rope):
        return
    theirs(kv_buffer, loc, cache_k_nope, cache_k_rope, *args, reserved_skip_index=reserved_skip_index)


def _stored(
    run: Run,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    indices: torch.Tensor,
    **options: Any,
) -> tuple[torch.Tensor, ...]:
    """The rows that a call stores, in caches for these alone."""
    caches = [cache.new_zeros(1 + len(k), cache.shape[1]) for cache in (k_cache, v_cache)]
    options.pop("size_limit", None)  # the slots of the whole cache
    (_, _, *stored, _), _ = run(k, v, *caches, _places(indices), **options)
    return tuple(stored)


def _stored_mla(
    run: Run, kv_buffer: torch.Tensor, loc: torch.Tensor, *parts: Any, **options: Any
) -> tuple[torch.Tensor, ...]:
    """The same for a buffer of MLA."""
    (stored, *_), _ = run(kv_buffer.new_zeros(1 + len(loc), *kv_buffer.shape[1:]), _places(loc), *parts, **options)
    return (stored,)


def _places(indices: torch.Tensor) -> torch.Tensor:
    """A slot for each row, behind the one that SGLang skips."""
    return torch.arange(1, 1 + len(indices), dtype=indices.dtype, device=indices.device)


def _fits(rows: tuple[torch.Tensor, ...], indices: torch.Tensor) -> bool:
    """Whether each is rows without gaps, all of one dtype, the cache among them."""
    first = rows[0]
    return (
        indices.ndim == 1
        and indices.numel() > 0
        and indices.is_contiguous()
        and indices.dtype in (torch.int32, torch.int64)
        and all(
            one.ndim == 2
            and one.stride(1) == 1
            and (len(one) == 1 or one.stride(0) >= one.shape[1] > 0)
            and one.dtype == first.dtype
            and one.device == indices.device
            for one in rows
        )
    )


def _works(name: str, parts: tuple[torch.Tensor, torch.Tensor], indices: torch.Tensor) -> bool:
    sizes = tuple(part.shape[1] for part in parts)
    dtype, device = parts[0].dtype, indices.device

    def trial(kernel: Op) -> None:
        def store(tokens: int) -> None:
            rows = [torch.zeros(tokens, size, dtype=dtype, device=device) for size in sizes]
            index = indices.new_zeros(tokens)
            if name == _STORE:
                kernel(*rows, *(torch.zeros_like(one[:1]) for one in rows), index)
            else:
                kernel(torch.zeros(1, sum(sizes), dtype=dtype, device=device), index, *rows)

        try_rows(store, sum(sizes), device.type)

    return works(name, (*sizes, dtype, indices.dtype, device.type), trial)
