"""The ops in plain Python and PyTorch, to compare the kernels with. Options about speed are ignored."""

from __future__ import annotations

import ctypes
import math

import torch


def transfer_hicache_one_layer(
    k_cache_dst: torch.Tensor,
    v_cache_dst: torch.Tensor,
    indices_dst: torch.Tensor,
    k_cache_src: torch.Tensor,
    v_cache_src: torch.Tensor,
    indices_src: torch.Tensor,
    *,
    element_dim: int | None = None,
    unroll: int | None = None,
    block_quota: int | None = None,
    page_size: int | None = None,
    check_indices: bool | None = None,
) -> None:
    """``k_cache_dst[indices_dst] = k_cache_src[indices_src]``, and V likewise; each cache on any device."""
    _move(k_cache_dst, indices_dst, k_cache_src, indices_src, element_dim)
    _move(v_cache_dst, indices_dst, v_cache_src, indices_src, element_dim)


def transfer_hicache_one_layer_mla(
    cache_dst: torch.Tensor,
    indices_dst: torch.Tensor,
    cache_src: torch.Tensor,
    indices_src: torch.Tensor,
    *,
    element_dim: int | None = None,
    unroll: int | None = None,
    block_quota: int | None = None,
    page_size: int | None = None,
    check_indices: bool | None = None,
) -> None:
    """``cache_dst[indices_dst] = cache_src[indices_src]``."""
    _move(cache_dst, indices_dst, cache_src, indices_src, element_dim)


def transfer_hicache_all_layer(
    k_ptr_dst: torch.Tensor,
    v_ptr_dst: torch.Tensor,
    indices_dst: torch.Tensor,
    k_ptr_src: torch.Tensor,
    v_ptr_src: torch.Tensor,
    indices_src: torch.Tensor,
    *,
    kv_cache_src_stride_bytes: int,
    kv_cache_dst_stride_bytes: int,
    element_size: int | None = None,
    kv_cache_src_page_stride_bytes: int | None = None,
    kv_cache_dst_page_stride_bytes: int | None = None,
    num_rows_src: int | None = None,
    num_rows_dst: int | None = None,
    unroll: int | None = None,
    block_quota: int | None = None,
    page_size: int | None = None,
    check_indices: bool | None = None,
) -> None:
    """Every row of every layer; the addresses must be in host memory."""
    for ptr_dst, ptr_src in ((k_ptr_dst, k_ptr_src), (v_ptr_dst, v_ptr_src)):
        transfer_hicache_all_layer_mla(
            ptr_dst,
            indices_dst,
            ptr_src,
            indices_src,
            cache_src_stride_bytes=kv_cache_src_stride_bytes,
            cache_dst_stride_bytes=kv_cache_dst_stride_bytes,
            element_size=element_size,
            unroll=unroll,
            block_quota=block_quota,
            page_size=page_size,
            cache_src_page_stride_bytes=kv_cache_src_page_stride_bytes,
            cache_dst_page_stride_bytes=kv_cache_dst_page_stride_bytes,
            num_rows_src=num_rows_src,
            num_rows_dst=num_rows_dst,
            check_indices=check_indices,
        )


def transfer_hicache_all_layer_mla(
    ptr_dst: torch.Tensor,
    indices_dst: torch.Tensor,
    ptr_src: torch.Tensor,
    indices_src: torch.Tensor,
    *,
    cache_src_stride_bytes: int,
    cache_dst_stride_bytes: int,
    element_size: int | None = None,
    cache_src_page_stride_bytes: int | None = None,
    cache_dst_page_stride_bytes: int | None = None,
    num_rows_src: int | None = None,
    num_rows_dst: int | None = None,
    unroll: int | None = None,
    block_quota: int | None = None,
    page_size: int | None = None,
    check_indices: bool | None = None,
) -> None:
    """Every row of every layer; the addresses must be in host memory."""
    page = page_size or 1
    src_page = cache_src_page_stride_bytes or page * cache_src_stride_bytes
    dst_page = cache_dst_page_stride_bytes or page * cache_dst_stride_bytes
    for dst, src in zip(ptr_dst.tolist(), ptr_src.tolist(), strict=True):
        for to, of in zip(indices_dst.tolist(), indices_src.tolist(), strict=True):
            ctypes.memmove(
                dst + to // page * dst_page + to % page * cache_dst_stride_bytes,
                src + of // page * src_page + of % page * cache_src_stride_bytes,
                element_size or cache_dst_stride_bytes,
            )


def _move(
    cache_dst: torch.Tensor,
    indices_dst: torch.Tensor,
    cache_src: torch.Tensor,
    indices_src: torch.Tensor,
    element_dim: int | None,
) -> None:
    rows = cache_src[_coordinates(cache_src, indices_src, element_dim)].to(cache_dst.device)
    to = _coordinates(cache_dst, indices_dst, element_dim)
    cache_dst[to] = rows.view(len(indices_dst), *cache_dst.shape[len(to) :])


def _coordinates(cache: torch.Tensor, indices: torch.Tensor, element_dim: int | None) -> tuple[torch.Tensor, ...]:
    """The coordinates of rows in the dimensions before the last ones that make up ``element_dim``."""
    split = cache.dim() - 1
    while element_dim is not None and split > 1 and math.prod(cache.shape[split:]) < element_dim:
        split -= 1
    return torch.unravel_index(indices.long().to(cache.device), cache.shape[:split])
