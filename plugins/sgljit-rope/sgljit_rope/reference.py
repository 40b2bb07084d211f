"""The ops in plain PyTorch and float64, to compare the kernels with. Each rounds once, with ``round_first`` twice."""

from __future__ import annotations

import torch


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
    """The pair (a, b) becomes (a * cos - b * sin, b * cos + a * sin)."""
    cos, sin = cos_sin_cache[positions.long()].chunk(2, dim=-1)
    for x in (q, k):
        x.copy_(_rotated(x, cos, sin, is_neox=is_neox, inverse=inverse))


def apply_rotary_pos_emb_inplace(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    is_neox: bool = True,
    inverse: bool = False,
) -> None:
    """The same, with the angles of each token."""
    (cos, _), (sin, _) = (x.flatten(0, -2).chunk(2, dim=-1) for x in (cos, sin))
    for x in (q, k):
        x.copy_(_rotated(x, cos, sin, is_neox=is_neox, inverse=inverse))


def apply_rotary_pos_emb(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_out: torch.Tensor,
    k_out: torch.Tensor,
) -> None:
    """The sum x * cos + rotate_half(x) * sin, as in transformers."""
    if 2 * cos.shape[-1] == q.shape[-1]:
        cos, sin = (x.repeat(1, 1, 2) for x in (cos, sin))
    cos, sin = cos.double()[:, None], sin.double()[:, None]
    for x, out in ((q.double(), q_out), (k.double(), k_out)):
        a, b = x.chunk(2, dim=-1)
        out.copy_(x * cos + torch.cat((-b, a), -1) * sin)


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
    """The same, and k and v are stored."""
    apply_rope_inplace(q, k, cos_sin_cache, positions, is_neox=is_neox, rope_dim=rope_dim)
    _store(k, v, k_cache, v_cache, out_loc)


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
    """The same of the one head of k, and both parts of a row are stored."""
    tokens, columns = len(q_rope), k_nope.shape[-1]
    rotated = k_rope.reshape(tokens, 1, k_rope.shape[-1]).clone()
    apply_rope_inplace(q_rope, rotated, cos_sin_cache, positions, is_neox=is_neox, rope_dim=rope_dim)
    k_rope.copy_(rotated.view(k_rope.shape))
    slots = kv_buffer.view(len(kv_buffer), 1, -1)
    _store(k_nope.reshape(tokens, 1, columns), rotated, slots[..., :columns], slots[..., columns:], out_loc)


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
    """RMSNorm of each head, then the rotation."""
    if round_first and q.dtype == torch.float64:
        raise TypeError("what is rounded first is rounded to the dtype of the kernel's q, which is not float64")
    cos, sin = cos_sin_cache[positions.long()].chunk(2, dim=-1)
    for x, weight in ((q, q_weight), (k, k_weight)):
        values, factors = x.double(), weight.double() + (1 if gemma else 0)
        normed = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + eps) * factors
        x.copy_(_rotated(normed.to(x.dtype) if round_first else normed, cos, sin, is_neox=is_neox))


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
    """The same, and k and v are stored."""
    tensors = (q, k, q_weight, k_weight, cos_sin_cache, positions)
    fused_qk_norm_rope(*tensors, eps=eps, is_neox=is_neox, rope_dim=rope_dim, gemma=gemma, round_first=round_first)
    _store(k, v, k_cache, v_cache, out_loc)


def _rotated(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, is_neox: bool, inverse: bool = False
) -> torch.Tensor:
    paired = 2 * cos.shape[-1]
    x, cos, sin = x.double(), cos.double()[:, None], sin.double()[:, None] * (-1 if inverse else 1)
    head = x[..., :paired]
    a, b = head.chunk(2, dim=-1) if is_neox else (head[..., ::2], head[..., 1::2])
    parts = (a * cos - b * sin, b * cos + a * sin)
    rotated = torch.cat(parts, -1) if is_neox else torch.stack(parts, -1).flatten(-2)
    return torch.cat((rotated, x[..., paired:]), -1)


def _store(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, out_loc: torch.Tensor
) -> None:
    stored = out_loc >= 0
    k_cache[out_loc[stored].long()] = k[stored].to(k_cache.dtype)
    v_cache[out_loc[stored].long()] = v[stored].to(v_cache.dtype)
