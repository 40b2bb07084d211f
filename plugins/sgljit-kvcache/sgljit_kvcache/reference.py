"""The ops in plain PyTorch, to compare the kernels with."""

from __future__ import annotations

import torch


def store_cache(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    indices: torch.Tensor,
    *,
    heads_first: bool = False,
) -> None:
    """``k_cache[indices[i]] = k[i]`` where the index is not negative."""
    stored = indices >= 0
    for x, cache in ((k, k_cache), (v, v_cache)):
        slots, places = _slots(cache, indices[stored], heads_first)
        slots[places] = x[stored]


def gather_cache(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    indices: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    heads_first: bool = False,
) -> None:
    """``k[i] = k_cache[indices[i]]``."""
    for x, cache in ((k, k_cache), (v, v_cache)):
        slots, places = _slots(cache, indices, heads_first)
        x.copy_(slots[places])


def _slots(
    cache: torch.Tensor, indices: torch.Tensor, heads_first: bool
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """A cache whose first dimensions are its slots, and the places of some in them."""
    places = indices.long()
    if cache.ndim < 4:
        return cache, (places,)
    blocks = cache.transpose(1, 2) if heads_first else cache
    return blocks, (places // blocks.shape[1], places % blocks.shape[1])


def set_mla_kv_buffer(kv_buffer: torch.Tensor, loc: torch.Tensor, k_nope: torch.Tensor, k_rope: torch.Tensor) -> None:
    """``kv_buffer[loc[i]] = k_nope[i], k_rope[i]`` where ``loc`` is not negative."""
    stored = loc >= 0
    rows = torch.cat([part.flatten(1) for part in (k_nope, k_rope)], -1)[stored]
    kv_buffer[loc[stored].long()] = rows.view(-1, *kv_buffer.shape[1:])


def set_mla_kv_buffer_fp8(
    kv_buffer: torch.Tensor, loc: torch.Tensor, k_nope: torch.Tensor, k_rope: torch.Tensor, *, scale_ue8m0: bool = False
) -> None:
    """A row of 512 values of e4m3, four scales and 64 values of bfloat16, in float32 as the kernel."""
    stored = loc >= 0
    groups = k_nope.flatten(1).float().unflatten(-1, (4, 128))[stored]
    largest = groups.abs().nan_to_num(nan=0.0, posinf=torch.inf).amax(-1)
    scale = (largest / torch.full_like(largest, 448)).clamp(2.0**-126, torch.finfo(torch.float32).max)
    if scale_ue8m0:
        fraction, exponent = torch.frexp(scale.double())
        scale = torch.exp2((exponent - (fraction == 0.5).int()).clamp(max=127).double()).float()
    quotient = (groups * scale.reciprocal()[..., None]).clamp(-448, 448)
    q = torch.where(quotient.isnan(), 0x7F, quotient.to(torch.float8_e4m3fn).view(torch.uint8)).to(torch.uint8)
    rope = k_rope.flatten(1)[stored].bfloat16()
    rope = rope.masked_fill(rope.isnan(), torch.nan)  # PyTorch makes several of them from a wider dtype
    parts = (q.flatten(1), scale, rope)
    rows = torch.cat([part.contiguous().view(torch.uint8) for part in parts], -1)
    kv_buffer.view(torch.uint8)[loc[stored].long()] = rows.view(-1, *kv_buffer.shape[1:])


def concat_mla_q(q: torch.Tensor, q_nope: torch.Tensor, q_rope: torch.Tensor) -> None:
    """One behind the other."""
    q.copy_(torch.cat((q_nope, q_rope), -1))


def concat_mla_k(k: torch.Tensor, k_nope: torch.Tensor, k_rope: torch.Tensor) -> None:
    """The second is that of all heads."""
    k_rope = k_rope.reshape(len(k), 1, k_rope.shape[-1])
    k.copy_(torch.cat((k_nope, k_rope.expand(-1, k.shape[1], -1)), -1))


def append_to_window(k_cache: torch.Tensor, v_cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """The last rows of the cache and the new ones together, as many as the cache has."""
    for cache, x in ((k_cache, k), (v_cache, v)):
        cache.copy_(torch.cat((cache[:, :, x.shape[2] :], x), dim=2))
