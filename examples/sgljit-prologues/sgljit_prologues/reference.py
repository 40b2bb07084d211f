"""The ops in plain PyTorch, in float64 and rounded once, and arguments to compare the two on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def normed(x: torch.Tensor, weight: torch.Tensor, eps: float, plus: float = 0.0) -> torch.Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (plus + weight.double())


def rotated(x: torch.Tensor, angles: torch.Tensor, *, is_neox: bool) -> torch.Tensor:
    """x: [tokens, ..., size]; angles: [tokens, rope_dim]."""
    cos, sin = angles.double().view(len(angles), *[1] * (x.dim() - 2), angles.shape[1]).chunk(2, -1)
    turned, rest = x.double().split([angles.shape[-1], x.shape[-1] - angles.shape[-1]], -1)
    shape = (2, -1) if is_neox else (-1, 2)
    a, b = turned.unflatten(-1, shape).unbind(-2 if is_neox else -1)
    pairs = torch.stack([a * cos - b * sin, b * cos + a * sin], -2 if is_neox else -1)
    return torch.cat([pairs.flatten(-2), rest], -1)


def store(cache: torch.Tensor, slots: torch.Tensor, x: torch.Tensor) -> None:
    cache[slots[slots >= 0].long()] = x[slots >= 0].to(cache.dtype)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    """Stores k, rotated, and v; q, rotated."""
    angles = cos_sin[positions.long()]
    store(k_cache, slots, rotated(k, angles, is_neox=True))
    store(v_cache, slots, v)
    return rotated(q, angles, is_neox=True)


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
    where = (cos_sin, positions, k_cache, v_cache, slots)
    heads = (normed(x, weight, eps) for x, weight in ((q, q_weight), (k, k_weight)))
    queries, keys = (x.to(v.dtype) if round_first else x for x in heads)
    q.copy_(attend(queries, keys, v, *where))


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
    where = (cos_sin, positions, k_cache, v_cache, slots)
    q, gate = q_and_gate.chunk(2, -1)
    heads = (normed(x, weight, eps, 1.0) for x, weight in ((q, q_weight), (k, k_weight)))
    queries, keys = (x.to(v.dtype) if round_first else x for x in heads)
    q.copy_(attend(queries, keys, v, *where))
    gate.copy_(gate.double().sigmoid())


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
    q.copy_(attend(q, k, v, cos_sin, positions, k_cache, v_cache, slots))


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
    where = (cos_sin, positions, k_cache, v_cache, slots)
    for x, weight in ((q, q_weight), (k, k_weight)):
        x.copy_(normed(x.flatten(1), weight, eps).view(x.shape))
    q.copy_(attend(q, k, v, *where))


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
    latent, positional = kv_latent.split([len(kv_weight), kv_latent.shape[1] - len(kv_weight)], 1)
    turned = rotated(positional, cos_sin[positions.long()], is_neox=False)
    store(kv_cache, slots, torch.cat([normed(latent, kv_weight, eps), turned], 1))
    q_latent.copy_(normed(q_latent, q_weight, eps))


def gemma3(
    x: torch.Tensor,
    residual: torch.Tensor,
    after: torch.Tensor,
    before: torch.Tensor,
    eps: float = 1e-6,
) -> None:
    total = residual.double() + normed(x, after, eps, 1.0)
    residual.copy_(total)
    x.copy_(normed(total, before, eps, 1.0))


def samples(
    device: torch.device,
    heads: int,
    kv_heads: int,
    size: int,
    rope_dim: int,
    *,
    across: bool = False,
    gated: bool = False,
) -> Iterator[dict[str, Any]]:
    """q, k and v as slices of one projection; no token, one, several; a token that is not stored."""
    for dtype in DTYPES:
        for tokens in (0, 1, 5):
            widths = [(2 if gated else 1) * heads * size, kv_heads * size, kv_heads * size]
            q, k, v = torch.randn(tokens, sum(widths), device=device).to(dtype).split(widths, 1)
            q, k, v = (x.unflatten(1, (-1, n)) for x, n in ((q, (2 if gated else 1) * size), (k, size), (v, size)))
            sizes = [heads * size, kv_heads * size] if across else [size, size]
            weights = [torch.randn(n, device=device).to(dtype) for n in sizes]
            caches = [torch.zeros(tokens + 3, kv_heads, size, device=device, dtype=dtype) for _ in range(2)]
            angles = torch.rand(16, rope_dim // 2, device=device) * 6
            slots = torch.arange(tokens, device=device).flip(0) + 2
            slots[1:2] = -1
            yield {
                "q_and_gate" if gated else "q": q,
                "k": k,
                "v": v,
                "q_weight": weights[0],
                "k_weight": weights[1],
                "cos_sin": torch.cat([angles.cos(), angles.sin()], 1),
                "positions": torch.arange(tokens, device=device) * 3 % 16,
                "k_cache": caches[0],
                "v_cache": caches[1],
                "slots": slots,
            }


def samples_of_qwen3(device: torch.device) -> Iterator[dict[str, Any]]:
    yield from samples(device, 32, 8, 128, 128)


def samples_of_qwen3_next(device: torch.device) -> Iterator[dict[str, Any]]:
    yield from samples(device, 16, 2, 256, 64, gated=True)


minimax_m2.roundings = 2  # type: ignore[attr-defined]  # q and k are rounded between the norm and the rotation


def samples_of_minimax_m2(device: torch.device) -> Iterator[dict[str, Any]]:
    yield from samples(device, 48, 8, 128, 64, across=True)


def samples_of_gpt_oss(device: torch.device) -> Iterator[dict[str, Any]]:
    """With angles as long as its YaRN makes them: those of other models have a length of 1."""
    amplitude = 0.1 * math.log(32) + 1
    for sample in samples(device, 64, 8, 64, 64):
        sample["cos_sin"] *= amplitude
        yield {name: value for name, value in sample.items() if "weight" not in name}


def latents(device: torch.device, q_rank: int, kv_rank: int, rope_dim: int) -> Iterator[dict[str, Any]]:
    """Slices of one projection; no token, one, several; a token that is not stored."""
    for dtype in DTYPES:
        for tokens in (0, 1, 5):
            projected = torch.randn(tokens, q_rank + kv_rank + rope_dim, device=device).to(dtype)
            angles = torch.rand(16, rope_dim // 2, device=device) * 6
            slots = torch.arange(tokens, device=device, dtype=torch.int32).flip(0) + 2
            slots[1:2] = -1
            yield {
                "q_latent": projected[:, :q_rank],
                "kv_latent": projected[:, q_rank:],
                "q_weight": torch.randn(q_rank, device=device).to(dtype),
                "kv_weight": torch.randn(kv_rank, device=device).to(dtype),
                "cos_sin": torch.cat([angles.cos(), angles.sin()], 1),
                "positions": torch.arange(tokens, device=device) * 3 % 16,
                "kv_cache": torch.zeros(tokens + 3, kv_rank + rope_dim, device=device, dtype=dtype),
                "slots": slots,
            }


def samples_of_deepseek_v3(device: torch.device) -> Iterator[dict[str, Any]]:
    yield from latents(device, 1536, 512, 64)


def samples_of_gemma3(device: torch.device) -> Iterator[dict[str, Any]]:
    for dtype in DTYPES:
        for tokens in (0, 1, 5):
            for hidden in (2560, 5376):
                yield {
                    "x": torch.randn(tokens, hidden, device=device).to(dtype),
                    "residual": torch.randn(tokens, hidden, device=device).to(dtype) * 4,
                    "after": torch.randn(hidden, device=device).to(dtype),
                    "before": torch.randn(hidden, device=device).to(dtype),
                }
