"""The ops in plain PyTorch, to compare the kernels with."""

from __future__ import annotations

import torch


def store_cache(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, indices: torch.Tensor
) -> None:
    """``k_cache[indices[i]] = k[i]`` where the index is not negative."""
    stored = indices >= 0
    for x, cache in ((k, k_cache), (v, v_cache)):
        cache[indices[stored].long()] = x[stored]


def gather_cache(
    k_cache: torch.Tensor, v_cache: torch.Tensor, indices: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> None:
    """``k[i] = k_cache[indices[i]]``."""
    k.copy_(k_cache[indices.long()])
    v.copy_(v_cache[indices.long()])


def set_mla_kv_buffer(kv_buffer: torch.Tensor, loc: torch.Tensor, k_nope: torch.Tensor, k_rope: torch.Tensor) -> None:
    """``kv_buffer[loc[i]] = k_nope[i], k_rope[i]`` where ``loc`` is not negative."""
    stored = loc >= 0
    rows = torch.cat([part.flatten(1) for part in (k_nope, k_rope)], -1)[stored]
    kv_buffer[loc[stored].long()] = rows.view(-1, *kv_buffer.shape[1:])


def append_to_window(k_cache: torch.Tensor, v_cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """The last rows of the cache and the new ones together, as many as the cache has."""
    for cache, x in ((k_cache, k), (v_cache, v)):
        cache.copy_(torch.cat((cache[:, :, x.shape[2] :], x), dim=2))
