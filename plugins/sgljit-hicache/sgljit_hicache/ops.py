"""The functions users call. Their bodies are C++: csrc/hicache.cpp checks, chooses a kernel and launches it."""

from __future__ import annotations

import torch

from .plugin import FAMILY


@FAMILY.op(mutates=("k_cache_dst", "v_cache_dst"))
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
    """``k_cache_dst[indices_dst] = k_cache_src[indices_src]``, and V likewise, in one launch.

    Caches are on the device of the indices or in pinned host memory; with indices on the CPU, all are in host memory
    and the CPU copies. On CUDA it runs on the current stream of that device and returns at once.

    Args:
        k_cache_dst, v_cache_dst: [rows, elements], any dtype. The last dimensions that make up ``element_dim`` are a
            row and have no gaps; those before it count rows, at one stride or, in pages, at two: ``pool[:, layer]`` of
            a page-first pool needs no copy. K and V have the same strides.
        indices_dst: [n], int32 or int64: which row of the destination each row goes to.
            Trusted on CUDA, see ``check_indices``.
        k_cache_src, v_cache_src: like the destinations, with strides of their own; the same rows.
        indices_src: like ``indices_dst``: which row of the source it comes from.
        element_dim: elements of a row; the last dimension's size when None.
        unroll: rows that a warp moves at a time, instead of the choice by row size.
        block_quota: the most blocks, and so multiprocessors, to take. Without it a transfer takes as many as the link's
            speed needs; with 2 it disturbs other kernels little.
        page_size: rows of a page, if the indices name whole pages of neighbours. Fewer blocks are enough then. Every
            row has an index of its own, so it changes nothing else.
        check_indices: find indices that are out of range, and destinations named twice or also read, before anything
            moves. It makes the host wait for the device. When None, as ``SGLJIT_CHECK_INDICES`` says (read once), and
            where that is not set, on the CPU.

    Raises:
        sgljit_core.errors.TensorMatchError: shapes, dtypes, strides or devices do not fit.
        ValueError: a cache in pageable host memory in a transfer on CUDA; destinations that overlap themselves, each
            other, a source other than their own, or the indices; a bad option. Checked: a destination named twice, or
            also read.
        IndexError: indices for a cache without rows. Checked: an index out of range; the first such position.
    """


@FAMILY.op(mutates=("cache_dst",))
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
    """``cache_dst[indices_dst] = cache_src[indices_src]``: as ``transfer_hicache_one_layer``, with one cache."""


@FAMILY.op(mutates=("k_ptr_dst", "v_ptr_dst"))
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
    """The same rows of every layer, in one launch.

    Args:
        k_ptr_dst, v_ptr_dst, k_ptr_src, v_ptr_src: [layers], uint64 or int64: the address of each layer's cache.
            On the device of the indices, or on the CPU: then (up to 96 layers in a launch) they travel with the
            launch, and the host sees where the caches are, so that it chooses the launch by direction and refuses
            pageable memory. Nothing is known of addresses on the device: a transfer takes the launch of one with the
            host, unless ``block_quota`` says otherwise, and every address must be a multiple of 16 (or, of rows or
            strides that are not, of the largest power of two that divides them). To torch.compile these tensors are
            what is written and read: see the README.
        indices_dst, indices_src: as for one layer.
        kv_cache_src_stride_bytes, kv_cache_dst_stride_bytes: from a row to the next.
        element_size: bytes of a row; needed where the strides differ.
        unroll, block_quota, check_indices: as for one layer.
        page_size: rows of a page, for a side with a page stride; also a hint, as for one layer.
        kv_cache_src_page_stride_bytes, kv_cache_dst_page_stride_bytes: from a page to the next, where that is not
            ``page_size`` rows.
        num_rows_src, num_rows_dst: rows of the caches. Without them the check of the indices, which is on by default on
            the CPU, knows of no upper bound: it finds a negative index and a destination named twice, while an index
            beyond the cache reads or writes whatever memory lies there, on the CPU as on CUDA.

    Raises:
        sgljit_core.errors.TensorMatchError, ValueError, IndexError: as for one layer.
        ValueError: a null address in a table on the CPU. Checked: that in any table, an address on the device that
            kernels cannot use, or a row of a layer that would be written where another is written or read, or on the
            CPU, where indices or addresses are.
    """


@FAMILY.op(mutates=("ptr_dst",))
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
    """The same rows of every layer: as ``transfer_hicache_all_layer``, with one cache."""


@FAMILY.op()
def can_use_hicache_jit_kernel(
    *,
    element_size: int,
    unroll: int | None = None,
    block_quota: int | None = None,
    page_size: int | None = None,
) -> bool:
    """Whether rows of ``element_size`` bytes move at full speed, which whole 16-byte words do.

    Others are moved too, in smaller words. Nothing is compiled to find out: an error of the toolchain shows as
    itself, at the first transfer.

    To ``torch.compile`` the answer is a constant. A size that it keeps symbolic breaks the graph there.
    """
    raise NotImplementedError  # never runs: the decorator calls C++
