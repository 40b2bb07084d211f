"""Arguments for each op, for tests and benchmarks: positional ones, then keywords."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

Sample = tuple[list[torch.Tensor], dict[str, Any]]

_SHAPES = [  # rows of the destination, of the source, moved; elements of a row
    (64, 96, 0, 1024),
    (64, 96, 1, 1024),
    (64, 96, 33, 1024),
    (700, 600, 512, 64),
    (300, 400, 256, 576),
    (40, 50, 17, 7),
]


def transfer_hicache_one_layer(device: torch.device) -> Iterator[Sample]:
    """Both kinds of indices, several row sizes, strided rows; from the host and back on CUDA."""
    for arguments, keywords in transfer_hicache_one_layer_mla(device):
        cache_dst, indices_dst, cache_src, indices_src = arguments
        yield [cache_dst, _like(cache_dst), indices_dst, cache_src, _like(cache_src), indices_src], keywords


def transfer_hicache_one_layer_mla(device: torch.device) -> Iterator[Sample]:
    """Both kinds of indices, several row sizes, strided rows; from the host and back on CUDA."""
    for dst_rows, src_rows, count, width in _SHAPES:
        for dtype in (torch.int32, torch.int64):
            indices = _indices(dst_rows, count, dtype, device), _indices(src_rows, count, dtype, device)
            for on_dst, on_src in ((device, device), (_host(device), device), (device, _host(device))):
                dst, src = _cache((dst_rows, width), on_dst), _cache((src_rows, 2, width), on_src)[:, 1]
                yield [dst, indices[0], src, indices[1]], {}


def transfer_hicache_all_layer(device: torch.device) -> Iterator[Sample]:
    """Three layers, from a layer-first pool to a page-first one, whose layers are neighbours in a row."""
    for arguments, keywords in transfer_hicache_all_layer_mla(device):
        dst, indices_dst, src, indices_src = arguments
        halves = [_keeping(half, table) for table in (dst, src) for half in table.chunk(2)]
        strides = {f"kv_{name}" if name.startswith("cache") else name: value for name, value in keywords.items()}
        yield [*halves[:2], indices_dst, *halves[2:], indices_src], strides


def transfer_hicache_all_layer_mla(device: torch.device) -> Iterator[Sample]:
    """Six layers, from a layer-first pool to a page-first one, whose layers are neighbours in a row."""
    for dst_rows, src_rows, count, width in _SHAPES:
        pool_dst, pool_src = _cache((dst_rows, 6, width), _host(device)), _cache((6, src_rows, width), device)
        dst = torch.tensor([pool_dst[:, layer].data_ptr() for layer in range(6)], dtype=torch.int64)
        src = torch.tensor([pool_src[layer].data_ptr() for layer in range(6)], dtype=torch.int64)
        row = 2 * width
        indices = (_indices(rows, count, torch.int64, device) for rows in (dst_rows, src_rows))
        yield (
            [_keeping(dst, pool_dst), next(indices), _keeping(src, pool_src), next(indices)],
            {"cache_src_stride_bytes": row, "cache_dst_stride_bytes": 6 * row, "element_size": row},
        )


def _keeping(table: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """Addresses, with what they point into: it lives as long as they do."""
    table.memory = memory  # type: ignore[attr-defined]
    return table


def _host(device: torch.device) -> torch.device | str:
    return "pinned" if device.type == "cuda" else device


def _cache(shape: tuple[int, ...], where: torch.device | str) -> torch.Tensor:
    cache = torch.randint(0, 2**15, shape, dtype=torch.int16).view(torch.bfloat16)
    return cache.pin_memory() if where == "pinned" else cache.to(where)


def _like(cache: torch.Tensor) -> torch.Tensor:
    """A cache of its own with the same strides."""
    other = torch.empty_strided(
        cache.shape, cache.stride(), dtype=cache.dtype, device=cache.device, pin_memory=cache.is_pinned()
    )
    return other.copy_(cache.flip(0))


def _indices(num_rows: int, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.randperm(num_rows)[:count].to(device, dtype)
