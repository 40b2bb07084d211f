"""Arguments for each op by name, for tests and benchmarks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

Sample = dict[str, Any]

_HEADS = ((128, 128), (80, 80), (256, 64), (6, 2))  # of a size, and how much of it is rotated
_POSITIONS = 40


def apply_rope_inplace(device: torch.device) -> Iterator[Sample]:
    """Every dtype, order and index; whole and partial rotations; q and k apart, and in a projection."""
    for i, sample in enumerate(_samples(device)):
        rotated = {name: sample[name] for name in ("q", "k", "cos_sin_cache", "positions", "is_neox", "rope_dim")}
        yield {**rotated, "inverse": i % 2 == 1}


def apply_rotary_pos_emb_inplace(device: torch.device) -> Iterator[Sample]:
    """The same, with angles of the dtype of q, and of float32."""
    for i, sample in enumerate(_samples(device)):
        angles = sample["cos_sin_cache"][sample["positions"].long()].to(torch.float32 if i % 2 else sample["q"].dtype)
        cos, sin = (x.repeat(1, 2) for x in angles.chunk(2, dim=-1))
        kept = {name: sample[name] for name in ("q", "k", "is_neox")}
        yield {**kept, "cos": cos, "sin": sin, "inverse": i % 3 == 1}


def apply_rotary_pos_emb(device: torch.device) -> Iterator[Sample]:
    """Batches that share angles and others; heads of a projection, parts of them, and tokens of longer sequences.

    Angles of elements, and of pairs.
    """
    kinds = ((1, 1, 0), (1, 1, 1), (1, 1, 9), (3, 1, 5), (3, 3, 5), (3, 1, 1), (3, 3, 1))
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    for i, (dtype, size, (batch, of_angles, tokens)) in enumerate(itertools.product(dtypes, (128, 80, 6), kinds)):
        if i % 3 == 0:
            q, k = torch.randn(batch, tokens, 6, size, device=device).to(dtype).transpose(1, 2).split((4, 2), dim=1)
        elif i % 3 == 1:
            q = torch.randn(batch, tokens, 4, 3 * size, device=device).to(dtype).transpose(1, 2)[..., 2 * size :]
            k = torch.randn(batch, 1, tokens, size, device=device).to(dtype)
        else:
            q, k = torch.randn(batch, 6, tokens + 3, size, device=device).to(dtype)[:, :, 2:-1].split((4, 2), dim=1)
        angles = torch.rand(of_angles, tokens, size, device=device) * 7  # both of a pair have angles of their own
        cos, sin = (x.to(torch.float32 if i % 2 else dtype) for x in (angles.cos(), angles.sin()))
        for part in (size, size // 2):  # or one for both
            outs = {"q_out": torch.zeros_like(q), "k_out": torch.zeros_like(k)}
            yield {"q": q, "k": k, "cos": cos[..., :part], "sin": sin[..., :part], **outs}


def apply_rope_inplace_with_kvcache(device: torch.device) -> Iterator[Sample]:
    """The same, with slots apart and one that is skipped; heads of v of the size of those of k, and shorter."""
    for sample in _samples(device):
        if len(sample["positions"]) == 1:
            sample |= {name: sample[name][..., :-2] for name in ("v", "v_cache")}
        yield {name: value for name, value in sample.items() if not name.endswith("weight")}


def apply_rope_inplace_with_mla_kvcache(device: torch.device) -> Iterator[Sample]:
    """The same for rows of two parts, with and without a dimension of one head, in buffers and in slices."""
    for i, sample in enumerate(_samples(device)):
        q, slots, kind = sample["q"], len(sample["k_cache"]), i // 3 % 3
        nope, (tokens, _, rope) = 512 if kind else 3, q.shape
        k_nope, k_rope = torch.randn(tokens, 1, nope + rope, device=device).to(q.dtype).split((nope, rope), dim=-1)
        kv_buffer = torch.zeros(slots, 1, nope + rope, dtype=q.dtype, device=device)
        if kind == 1:
            k_nope, k_rope, kv_buffer = k_nope[:, 0], k_rope[:, 0].clone(), kv_buffer[:, 0]
        where = {name: sample[name] for name in ("cos_sin_cache", "positions", "out_loc", "is_neox", "rope_dim")}
        yield {"q_rope": q, "k_nope": k_nope, "k_rope": k_rope, "kv_buffer": kv_buffer, **where}


def fused_qk_norm_rope(device: torch.device) -> Iterator[Sample]:
    """As ``apply_rope_inplace``, with both kinds of weights."""
    for sample in fused_qk_norm_rope_with_kvcache(device):
        yield {name: x for name, x in sample.items() if name not in ("v", "k_cache", "v_cache", "out_loc")}


def fused_qk_norm_rope_with_kvcache(device: torch.device) -> Iterator[Sample]:
    """As ``apply_rope_inplace_with_kvcache``, with both kinds of weights."""
    for i, sample in enumerate(_samples(device)):
        yield {**sample, "eps": 1e-5, "gemma": i % 2 == 1, "round_first": i % 5 == 4}


def _samples(device: torch.device) -> Iterator[Sample]:
    kinds = ((torch.bfloat16, torch.int64), (torch.float16, torch.int32), (torch.float32, torch.int64))
    for (dtype, index), is_neox, (size, paired) in itertools.product(kinds, (True, False), _HEADS):
        for tokens in (0, 1, 9):
            qkv = torch.randn(tokens, 4 + 2 + 2, size, device=device).to(dtype)
            q, k, v = qkv[:, :4], qkv[:, 4:6], qkv[:, 6:]
            if tokens == 1:
                q, k, v = (x.clone() for x in (q, k, v))
            slots = torch.tensor([3, -1, 19, 0, 8, -1, 5, 6, 7], dtype=index, device=device)[:tokens]
            angles = torch.rand(_POSITIONS, paired // 2, device=device) * 7
            yield {
                "q": q,
                "k": k,
                "v": v,
                **{f"{name}_weight": torch.randn(size, device=device).to(dtype) for name in "qk"},
                **{f"{name}_cache": torch.zeros(20, 2, size, dtype=dtype, device=device) for name in "kv"},
                "cos_sin_cache": torch.cat((angles.cos(), angles.sin()), -1),
                "positions": torch.randint(0, _POSITIONS, (tokens,), dtype=index, device=device),
                "out_loc": slots,
                "is_neox": is_neox,
                "rope_dim": paired if tokens == 9 else 0,
            }
