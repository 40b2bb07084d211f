"""The functions users call. Their body is C++: csrc/kvcache.cpp checks, chooses a kernel and launches it."""

from __future__ import annotations

import torch

from .plugin import FAMILY


@FAMILY.op(mutates=("k_cache", "v_cache"))
def store_cache(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    indices: torch.Tensor,
    *,
    heads_first: bool = False,
) -> None:
    """``k_cache[indices[i]] = k[i]``, and the same for v, in one launch; every bit is kept. No token: a no-op.

    Args:
        k: [tokens, heads, dim] or [tokens, row], of any dtype whose elements are whole bytes, on a CUDA device or the
            CPU. Tokens and heads may be any distance apart, such as in a slice of a projection.
        v: like ``k``, with a dtype, a number and a size of heads of its own.
        k_cache, v_cache: [slots, heads, dim] or [slots, row], like ``k`` and ``v``, of the same dtype. Or in blocks,
            [blocks, block_size, heads, dim], whose slots are ``block * block_size + place``; blocks, places and heads
            may be any distance apart, such as in a tensor of both caches. Blocks that interleave are refused.
        indices: [tokens], int32 or int64: the slot of each token; a token with a negative one is skipped. If
            tokens share a slot, each of its elements is that of one of them. On the CPU one out of range is refused; on
            CUDA only with ``SGLJIT_CHECK_INDICES=1``, which makes the host wait.
        heads_first: whether blocks are [blocks, heads, block_size, dim]: HND in place of NHD.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: a cache shares memory with another argument, or may; ``heads_first`` is set for a cache without
            blocks.
    """


@FAMILY.op(mutates=("k", "v"))
def gather_cache(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    indices: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    heads_first: bool = False,
) -> None:
    """``k[i] = k_cache[indices[i]]``, and the same for v, in one launch: what ``store_cache`` stored.

    Args:
        k_cache, v_cache: as in ``store_cache``.
        indices: [tokens], int32 or int64. One out of range, which a negative one is too: as in ``store_cache``.
        k, v: as in ``store_cache``; they are written.
        heads_first: as in ``store_cache``.

    Raises:
        sgljit_core.errors.TensorMatchError, ValueError: as ``store_cache``.
    """


@FAMILY.op(mutates=("kv_buffer",))
def set_mla_kv_buffer(kv_buffer: torch.Tensor, loc: torch.Tensor, k_nope: torch.Tensor, k_rope: torch.Tensor) -> None:
    """``kv_buffer[loc[i]] = k_nope[i], k_rope[i]``, the store of multi-head latent attention, in one launch.

    Args:
        kv_buffer: [slots, nope + rope] or [slots, 1, nope + rope], of a dtype and on a device as ``k`` of
            ``store_cache``; slots may be apart.
        loc: [tokens], int32 or int64, as ``indices`` of ``store_cache``.
        k_nope: [tokens, nope] or [tokens, 1, nope], of the dtype of ``kv_buffer``; rows may be apart.
        k_rope: [tokens, rope] or [tokens, 1, rope], likewise.

    Raises:
        sgljit_core.errors.TensorMatchError, ValueError: as ``store_cache``.
    """


@FAMILY.op(mutates=("kv_buffer",))
def set_mla_kv_buffer_fp8(
    kv_buffer: torch.Tensor,
    loc: torch.Tensor,
    k_nope: torch.Tensor,
    k_rope: torch.Tensor,
    *,
    scale_ue8m0: bool = False,
) -> None:
    """The same in FP8, in the rows of 656 bytes that FlashMLA's sparse attention takes: in one launch.

    A row is 512 values of e4m3, ``k_nope[i] / scale``, the four scales in float32, one for each 128 of them, and
    ``k_rope[i]``, 64 values of bfloat16. A scale is ``max(abs(group)) / 448``, with the limits of
    ``per_token_group_quant_fp8`` of sgljit-quant and ``eps=0``.

    Args:
        kv_buffer: [slots, 656] or [slots, 1, 656], uint8 or float8_e4m3fn, on a CUDA device or the CPU; slots may be
            apart. It begins at a multiple of 4 bytes, and the slots lie at multiples of 4.
        loc: [tokens], int32 or int64, as ``indices`` of ``store_cache``.
        k_nope: [tokens, 512] or [tokens, 1, 512], float16, bfloat16 or float32; rows may be apart, on CUDA at
            multiples of four elements.
        k_rope: [tokens, 64] or [tokens, 1, 64], of the dtype of ``k_nope``, likewise; rounded to bfloat16.
        scale_ue8m0: whether each scale is rounded up to a power of two, 2**127 at most.

    Raises:
        sgljit_core.errors.TensorMatchError, ValueError: as ``store_cache``.
    """


@FAMILY.op(mutates=("q",))
def concat_mla_q(q: torch.Tensor, q_nope: torch.Tensor, q_rope: torch.Tensor) -> None:
    """``q = cat((q_nope, q_rope), -1)`` in one launch: the queries of multi-head latent attention. Every bit is kept.

    Args:
        q: [tokens, heads, nope + rope], of any dtype whose elements are whole bytes, on a CUDA device or the CPU.
            Tokens and heads may be any distance apart.
        q_nope: [tokens, heads, nope], of the dtype of ``q``, likewise, such as a transposed product of each head.
        q_rope: [tokens, heads, rope], likewise.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: ``q`` shares memory with itself or another argument.
    """


@FAMILY.op(mutates=("k",))
def concat_mla_k(k: torch.Tensor, k_nope: torch.Tensor, k_rope: torch.Tensor) -> None:
    """``k = cat((k_nope, k_rope of all heads), -1)`` in one launch: the keys of latent attention without absorption.

    Args:
        k: [tokens, heads, nope + rope], as ``q`` of ``concat_mla_q``.
        k_nope: [tokens, heads, nope], as ``q_nope``.
        k_rope: [tokens, rope] or [tokens, 1, rope], of the dtype of ``k``; tokens may be apart.

    Raises:
        sgljit_core.errors.TensorMatchError, ValueError: as ``concat_mla_q``.
    """


@FAMILY.op(mutates=("k_cache", "v_cache"))
def append_to_window(k_cache: torch.Tensor, v_cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """``k_cache`` becomes the last ``window`` rows of ``cat((k_cache, k), dim=2)``, and the same for v, in one launch.

    Each head of a cache moves by ``tokens`` rows towards its front, in place, which drops its oldest rows, and the rows
    of ``k`` become its last. Every bit is kept. No token, or no sequence: a no-op.

    Args:
        k_cache: [batch, heads, window, dim], contiguous, float8_e4m3fn, float8_e5m2, float16, bfloat16 or float32, on a
            CUDA device or the CPU.
        v_cache: like ``k_cache``, of its dtype, with a ``dim`` of its own.
        k: [batch, heads, tokens, dim], of the dtype and the ``dim`` of ``k_cache``, with any distances, such as a
            transposed [batch, tokens, heads, dim]. There are at most ``window`` tokens; as many replace the cache.
        v: likewise for ``v_cache``.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: a cache shares memory with another argument. All memory between the first and the last element of an
            argument counts.
    """
