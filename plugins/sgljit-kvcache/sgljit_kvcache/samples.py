"""Arguments for each op by name, for tests and benchmarks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

Sample = dict[str, Any]


def store_cache(device: torch.device) -> Iterator[Sample]:
    """Words of 2 and 4 bytes, each index; heads of a projection and whole rows; v of another size; a skipped token."""
    for dtype, tokens, (size, v_size) in itertools.product(
        (torch.bfloat16, torch.float16, torch.float32), (0, 1, 9), ((128, 128), (192, 128), (80, 80), (6, 6), (1, 1))
    ):
        qkv = torch.randn(tokens, 8, size, device=device).to(dtype)
        k, v = qkv[:, 4:6], qkv[:, 6:, :v_size]
        caches = [torch.zeros(20, 2, x.shape[-1], dtype=dtype, device=device) for x in (k, v)]
        index = _slots(tokens, torch.int32 if dtype == torch.float16 else torch.int64, device)
        yield {"k": k, "v": v, "k_cache": caches[0], "v_cache": caches[1], "indices": index}
        both = torch.zeros(5, 2, 4, 2, size, dtype=dtype, device=device)  # blocks of both caches in turn, NHD and HND
        blocks = {"k_cache": both[:, 0], "v_cache": both[:, 1, ..., : v.shape[-1]].contiguous()}
        yield {"k": k, "v": v, **blocks, "indices": index}
        heads_first = {name: cache.transpose(1, 2).contiguous() for name, cache in blocks.items()}
        yield {"k": k, "v": v, **heads_first, "indices": index, "heads_first": True}
        k, v, *caches = (x.flatten(1) for x in (k, v, *caches))
        yield {"k": k, "v": v, "k_cache": caches[0], "v_cache": caches[1], "indices": index}


def gather_cache(device: torch.device) -> Iterator[Sample]:
    """As ``store_cache``; a slot may come twice."""
    for sample in store_cache(device):
        for cache in (sample["k_cache"], sample["v_cache"]):
            cache.copy_(torch.randn(cache.shape, device=device))
        yield {**sample, "indices": sample["indices"].abs()}


def set_mla_kv_buffer(device: torch.device) -> Iterator[Sample]:
    """Words of 2 and 4 bytes, each index, with and without a dimension of one head, in buffers and in slices."""
    for dtype, tokens, (nope, rope) in itertools.product(
        (torch.bfloat16, torch.float16, torch.float32), (0, 1, 9), ((512, 64), (80, 6), (3, 1))
    ):
        index = _slots(tokens, torch.int32 if dtype == torch.float16 else torch.int64, device)
        both = torch.randn(tokens, 1, nope + rope, device=device).to(dtype)
        buffer = torch.zeros(20, 1, nope + rope, dtype=dtype, device=device)
        k_nope, k_rope = both[..., :nope], both[..., nope:]
        yield {"kv_buffer": buffer, "loc": index, "k_nope": k_nope, "k_rope": k_rope}
        yield {"kv_buffer": buffer[:, 0], "loc": index, "k_nope": k_nope[:, 0], "k_rope": k_rope[:, 0].clone()}


def set_mla_kv_buffer_fp8(device: torch.device) -> Iterator[Sample]:
    """Every dtype, each index, with and without a dimension of one head, in buffers and in slices, both scales."""
    for dtype, tokens in itertools.product((torch.bfloat16, torch.float16, torch.float32), (0, 1, 9)):
        index = _slots(tokens, torch.int32 if dtype == torch.float16 else torch.int64, device)
        both = torch.randn(tokens, 1, 512 + 64, device=device).to(dtype)
        k_nope, k_rope = both[..., :512], both[..., 512:]
        wide = torch.zeros(20, 1, 656 + 12, dtype=torch.uint8, device=device)
        yield {"kv_buffer": wide[..., :656], "loc": index, "k_nope": k_nope, "k_rope": k_rope}
        buffer = torch.zeros(20, 656, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
        sample = {"kv_buffer": buffer, "loc": index, "k_nope": k_nope[:, 0], "k_rope": k_rope[:, 0].clone()}
        yield {**sample, "scale_ue8m0": True}


def concat_mla_q(device: torch.device) -> Iterator[Sample]:
    """Words of 2 and 4 bytes; products of each head, and dense ones."""
    for dtype, (tokens, heads), (nope, rope) in itertools.product(
        (torch.bfloat16, torch.float16, torch.float32), ((0, 4), (1, 1), (9, 5)), ((512, 64), (128, 64), (3, 1))
    ):
        q_nope, q_rope = (torch.randn(heads, tokens, size, device=device).to(dtype) for size in (nope, rope))
        q = torch.zeros(tokens, heads, nope + rope, dtype=dtype, device=device)
        yield {"q": q, "q_nope": q_nope.transpose(0, 1), "q_rope": q_rope.transpose(0, 1).contiguous()}


def concat_mla_k(device: torch.device) -> Iterator[Sample]:
    """The same; the second part with and without a dimension of one head."""
    for number, sample in enumerate(concat_mla_q(device)):
        k_rope = sample["q_rope"][:, :1].contiguous()
        yield {"k": sample["q"], "k_nope": sample["q_nope"], "k_rope": k_rope[:, 0] if number % 2 else k_rope}


def append_to_window(device: torch.device) -> Iterator[Sample]:
    """Every dtype and size of a load; heads of a projection, and dense ones; up to a window of tokens."""
    for dtype, (batch, window, tokens), (size, v_size) in itertools.product(
        (torch.bfloat16, torch.float16, torch.float32),
        ((0, 4, 1), (1, 4, 0), (2, 1, 1), (3, 37, 3), (1, 33, 33), (1, 300, 1)),
        ((128, 128), (192, 128), (80, 20), (6, 6), (65, 65), (1, 1)),
    ):
        qkv = torch.randn(batch, tokens, 4, size + v_size, device=device).to(dtype).transpose(1, 2)
        k, v = qkv[:, 2:].split((size, v_size), -1)
        k_cache, v_cache = (torch.randn(batch, 2, window, n, device=device).to(dtype) for n in (size, v_size))
        yield {"k_cache": k_cache, "v_cache": v_cache, "k": k, "v": v}
        yield {"k_cache": k_cache, "v_cache": v_cache, "k": k.contiguous(), "v": v.contiguous()}


def _slots(tokens: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.tensor([3, -1, 19, 0, 8, -1, 5, 6, 7], dtype=dtype, device=device)[:tokens]
