"""The functions users call. Their body is C++: csrc/rope.cpp checks, chooses a kernel and launches it."""

from __future__ import annotations

import torch

from .plugin import FAMILY


@FAMILY.op(mutates=("q", "k"))
def apply_rope_inplace(
    q: torch.Tensor,
    k: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    *,
    is_neox: bool = True,
    rope_dim: int = 0,
    inverse: bool = False,
) -> None:
    """Rotary position embedding of the heads of ``q`` and ``k``, in place, in one launch.

    The pair (a, b) becomes (a * cos - b * sin, b * cos + a * sin), computed in float32 and rounded once. No token: a
    no-op.

    Args:
        q: [tokens, heads, head_dim], float16, bfloat16 or float32, on a CUDA device or the CPU. Tokens and heads may be
            any distance apart, such as in a slice of a projection; elements of a head may not.
        k: like ``q``, of its dtype, with a number of heads of its own.
        cos_sin_cache: [positions, rope_dim], a cosine for each pair, then a sine for each; float32 as a rule, or
            float16 or bfloat16.
        positions: [tokens], int32 or int64, rows of ``cos_sin_cache``. On the CPU one out of range is refused; on CUDA
            only with ``SGLJIT_CHECK_INDICES=1``, which makes the host wait.
        is_neox: whether element i goes with i + rope_dim / 2; else 2i goes with 2i + 1.
        rope_dim: the elements of a head that are rotated, the first; the others stay. 0: as ``cos_sin_cache`` says.
        inverse: turn by the negative angle, which undoes a rotation.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: heads that are written share memory with each other or with another argument.
    """


@FAMILY.op(mutates=("q", "k"))
def apply_rotary_pos_emb_inplace(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    is_neox: bool = True,
    inverse: bool = False,
) -> None:
    """``apply_rope_inplace`` with a cosine and a sine of each token, as models of transformers have them.

    Args:
        q, k, is_neox, inverse: as in ``apply_rope_inplace``.
        cos: [tokens, rope_dim] or [batch, sequence, rope_dim], one value for each pair, and all of them once more: the
            first half is read. float16, bfloat16 or float32.
        sin: like ``cos``.

    Raises:
        sgljit_core.errors.TensorMatchError, ValueError: as ``apply_rope_inplace``.
    """


@FAMILY.op(mutates=("q_out", "k_out"))
def apply_rotary_pos_emb(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_out: torch.Tensor,
    k_out: torch.Tensor,
) -> None:
    """Write x * cos + rotate_half(x) * sin of ``q`` and of ``k``, as the function of that name in transformers has it.

    Computed in float32 and rounded once. One launch for all sequences, if one stride leads from each to the next; else
    one for each. No element: a no-op.

    Args:
        q: [batch, heads, sequence, head_dim], float16, bfloat16 or float32, on a CUDA device or the CPU. Batch, heads
            and sequence may be any distance apart, such as in ``x.view(b, s, h, d).transpose(1, 2)`` or a slice of it;
            elements of a head may not.
        k: like ``q``, of its dtype, with a number of heads of its own; may be expanded, as it is only read.
        cos: [batch, sequence, head_dim] or [1, sequence, head_dim], float16, bfloat16 or float32: the element i of a
            head and i + head_dim / 2, which make a pair, have each a value of their own. Or of head_dim / 2 elements,
            one for each pair, as gpt-oss has them.
        sin: like ``cos``, with as many elements; its dtype and its batch may be others.
        q_out: like ``q``, with strides of its own; it shares memory with no other argument.
        k_out: like ``k``, with strides of its own; it shares memory with no other argument.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: rows that are written share memory with each other or with another argument, or may do so.
    """


@FAMILY.op(mutates=("q", "k", "k_cache", "v_cache"))
def apply_rope_inplace_with_kvcache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    out_loc: torch.Tensor,
    *,
    is_neox: bool = True,
    rope_dim: int = 0,
) -> None:
    """``apply_rope_inplace``, and the rotated ``k`` and ``v`` go to slots of their caches, in one launch.

    Args:
        q, k, cos_sin_cache, positions, is_neox, rope_dim: as in ``apply_rope_inplace``.
        v: [tokens, heads, v_head_dim], of the dtype of ``q``; only read.
        k_cache, v_cache: [slots, heads, head_dim] and [slots, heads, v_head_dim], with the heads of ``k`` and of ``v``,
            of their dtype: a cache in FP8 would need a scale.
        out_loc: [tokens], int32 or int64: the slot of each token; a token with a negative one is not stored.
            If tokens share a slot, each of its elements is that of one of them. One out of range: as for
            ``positions``.

    Raises:
        sgljit_core.errors.TensorMatchError, ValueError: as ``apply_rope_inplace``.
    """


@FAMILY.op(mutates=("q_rope", "k_rope", "kv_buffer"))
def apply_rope_inplace_with_mla_kvcache(
    q_rope: torch.Tensor,
    k_nope: torch.Tensor,
    k_rope: torch.Tensor,
    kv_buffer: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    out_loc: torch.Tensor,
    *,
    is_neox: bool = True,
    rope_dim: int = 0,
) -> None:
    """Multi-head latent attention's ``apply_rope_inplace_with_kvcache``: both parts of each latent row go to a slot.

    ``q_rope`` and ``k_rope`` are rotated in place, and ``kv_buffer[out_loc[i]] = k_nope[i], k_rope[i]``, in one launch.

    Args:
        q_rope: [tokens, heads, rope], as ``q`` of ``apply_rope_inplace``, such as the ends of heads, ``q[..., nope:]``.
        k_nope: [tokens, nope] or [tokens, 1, nope], of the dtype of ``q_rope``, such as a slice of a projection; only
            read.
        k_rope: [tokens, rope] or [tokens, 1, rope], likewise: one key for all heads. It may not share memory with
            ``k_nope``.
        kv_buffer: [slots, nope + rope] or [slots, 1, nope + rope], of the dtype of ``q_rope``; slots may be apart. For
            blocks, [blocks, block_size, nope + rope], pass ``kv_buffer.view(-1, nope + rope)``.
        cos_sin_cache, positions, is_neox, rope_dim: as in ``apply_rope_inplace``. DeepSeek's models pair 2i with
            2i + 1.
        out_loc: as in ``apply_rope_inplace_with_kvcache``.

    Raises:
        sgljit_core.errors.TensorMatchError, ValueError: as ``apply_rope_inplace``.
    """


@FAMILY.op(mutates=("q", "k"))
def fused_qk_norm_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    *,
    eps: float = 1e-6,
    is_neox: bool = True,
    rope_dim: int = 0,
    gemma: bool = False,
    round_first: bool = False,
) -> None:
    """RMSNorm of each head of ``q`` and ``k``, then ``apply_rope_inplace``, in one launch.

    Rounded once, at the end; or twice, with ``round_first``.

    Args:
        q, k, cos_sin_cache, positions, is_neox, rope_dim: as in ``apply_rope_inplace``.
        q_weight, k_weight: [head_dim], contiguous, of one dtype: float16, bfloat16 or float32.
        eps: at least 0; added to the mean of squares.
        gemma: multiply by ``1 + weight``.
        round_first: round the normalised heads to the dtype of ``q`` before they are rotated, as two ops do, one after
            the other. The bits are theirs then: on the CPU for all heads, on CUDA for heads of 512 bytes at most of
            float16 or bfloat16, if 16 divides what is rotated of them. In float32 the last bit may differ on CUDA.

    Raises:
        sgljit_core.errors.TensorMatchError, ValueError: as ``apply_rope_inplace``; ``eps`` is negative.
    """


@FAMILY.op(mutates=("q", "k", "k_cache", "v_cache"))
def fused_qk_norm_rope_with_kvcache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    out_loc: torch.Tensor,
    *,
    eps: float = 1e-6,
    is_neox: bool = True,
    rope_dim: int = 0,
    gemma: bool = False,
    round_first: bool = False,
) -> None:
    """``fused_qk_norm_rope``, and ``k`` and ``v`` go to slots of their caches, in one launch.

    Args:
        q, k, q_weight, k_weight, cos_sin_cache, positions, eps, is_neox, rope_dim, gemma, round_first: as in
            ``fused_qk_norm_rope``.
        v, k_cache, v_cache, out_loc: as in ``apply_rope_inplace_with_kvcache``.

    Raises:
        sgljit_core.errors.TensorMatchError, ValueError: as ``fused_qk_norm_rope``.
    """
