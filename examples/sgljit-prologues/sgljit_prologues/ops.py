"""The functions users call. Their body is C++: csrc/prologues.cpp binds the operands of the programs.

All tensors are float16, bfloat16 or float32, on one CUDA device or the CPU; what is computed in between is float32, and each
result is rounded once. Every op raises ``sgljit_core.errors.TensorMatchError`` for a tensor that is not as it says, and
``ValueError`` where memory that is written is also another argument's, or if ``eps`` is below 0. On the CPU a position or
slot out of range is refused; on CUDA only with ``SGLJIT_CHECK_INDICES=1``, which makes the host wait.
"""

from __future__ import annotations

import torch

from .plugin import FAMILY


@FAMILY.op(mutates=("q", "k_cache", "v_cache"), samples="sgljit_prologues.reference:samples_of_qwen3")
def qwen3(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    eps: float = 1e-6,
    *,
    round_first: bool = False,
) -> None:
    """The prologue of Qwen3's attention: RMSNorm and rotation of q's and k's heads, and the store of k and v.

    Args:
        q: [tokens, heads, head_dim], any slice whose heads have no gaps inside; written in place.
        k, v: [tokens, kv_heads, head_dim], likewise; read.
        q_weight, k_weight: [head_dim], of one dtype.
        cos_sin: [positions, rope_dim], a cosine for each pair of i and i + rope_dim / 2, then a sine for each.
        positions: [tokens], int32 or int64, rows of ``cos_sin``.
        k_cache, v_cache: [slots, kv_heads, head_dim], of the dtype of k and v; written.
        slots: [tokens], int32 or int64; a token with a negative one is not stored.
        eps: added to the mean of squares.
        round_first: whether q and k are rounded between the norm and the rotation, as by two kernels. On CUDA the bits
            are theirs for heads of at most 512 bytes, whose rotated part 16 divides, but not in float32.
    """


@FAMILY.op(mutates=("q_and_gate", "k_cache", "v_cache"), samples="sgljit_prologues.reference:samples_of_qwen3_next")
def qwen3_next(
    q_and_gate: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    eps: float = 1e-6,
    *,
    round_first: bool = False,
) -> None:
    """``qwen3`` with Gemma's norm, 1 + weight, a rotation of a part of each head, and the sigmoid of the output's gate.

    Args:
        q_and_gate: [tokens, heads, 2 * head_dim], q and then the gate of each head; written in place.
        k, v, q_weight, k_weight, cos_sin, positions, k_cache, v_cache, slots, eps, round_first: as in ``qwen3``.
    """


@FAMILY.op(mutates=("q", "k_cache", "v_cache"), samples="sgljit_prologues.reference:samples_of_gpt_oss")
def gpt_oss(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """``qwen3`` without a norm: gpt-oss. YaRN is in ``cos_sin``, see ``sgljit_rope.yarn_table``.

    Args:
        q, k, v, cos_sin, positions, k_cache, v_cache, slots: as in ``qwen3``.
    """


@FAMILY.op(mutates=("q_latent", "kv_cache"), samples="sgljit_prologues.reference:samples_of_deepseek_v3")
def deepseek_v3(
    q_latent: torch.Tensor,
    kv_latent: torch.Tensor,
    q_weight: torch.Tensor,
    kv_weight: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    kv_cache: torch.Tensor,
    slots: torch.Tensor,
    eps: float = 1e-6,
) -> None:
    """The prologue of DeepSeek V3's multi-head latent attention, behind the first projections.

    RMSNorm of both latents; the positional part of k is rotated, pairs of 2i and 2i + 1; the latent of k and v and that
    part go to the cache.

    Args:
        q_latent: [tokens, q_rank]; written in place.
        kv_latent: [tokens, kv_rank + rope_dim], a slice of the same projection, as a rule; read.
        q_weight, kv_weight: [q_rank] and [kv_rank], of one dtype.
        cos_sin: [positions, rope_dim], a cosine for each pair, then a sine for each.
        positions: [tokens], int32 or int64, rows of ``cos_sin``.
        kv_cache: [slots, kv_rank + rope_dim], of the dtype of kv_latent; written.
        slots: [tokens], int32 or int64; a token with a negative one is not stored.
        eps: added to the mean of squares.
    """


@FAMILY.op(mutates=("x", "residual"), samples="sgljit_prologues.reference:samples_of_gemma3")
def gemma3(
    x: torch.Tensor, residual: torch.Tensor, after: torch.Tensor, before: torch.Tensor, eps: float = 1e-6
) -> None:
    """The norms on both sides of Gemma 3's residual: the end of one block and the beginning of the next.

    ``residual += norm(x) * (1 + after)``, and then ``x = norm(residual) * (1 + before)``, of the sum before it is rounded.

    Args:
        x: [tokens, hidden], the result of attention or of the MLP; written in place.
        residual: like ``x``; written in place.
        after, before: [hidden], the weights of the block's last norm and of the next block's first, of one dtype.
        eps: added to the mean of squares.
    """


@FAMILY.op(mutates=("q", "k", "k_cache", "v_cache"), samples="sgljit_prologues.reference:samples_of_minimax_m2")
def minimax_m2(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    eps: float = 1e-6,
) -> None:
    """``qwen3`` with norms over all heads of q together and all of k, in two launches: MiniMax M2.

    q and k are rounded once more between them, as in the model.

    Args:
        q: [tokens, heads, head_dim], the heads of a token side by side; written in place.
        k: [tokens, kv_heads, head_dim], likewise; it is normalised in place.
        v, cos_sin, positions, k_cache, v_cache, slots, eps: as in ``qwen3``.
        q_weight, k_weight: [heads * head_dim] and [kv_heads * head_dim], of one dtype.
    """
