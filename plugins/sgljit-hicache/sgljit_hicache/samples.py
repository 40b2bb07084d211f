"""Arguments for each op by name, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

Sample = dict[str, Any]

_SHAPES = [  # rows of the destination, of the source, moved rows; elements of a row
    (64, 96, 0, 1024),
    (64, 96, 1, 1024),
    (64, 96, 33, 1024),
    (700, 600, 512, 64),
    (300, 400, 256, 576),
    (40, 50, 17, 7),
]


def transfer_hicache_one_layer(device: torch.device) -> Iterator[Sample]:
    """Both kinds of indices, several row sizes, strided rows; from the host and back on CUDA."""
    for sample in transfer_hicache_one_layer_mla(device):
        dst, src = sample.pop("cache_dst"), sample.pop("cache_src")
        caches = {"k_cache_dst": dst, "v_cache_dst": _like(dst), "k_cache_src": src, "v_cache_src": _like(src)}
        yield {**caches, **sample}


def transfer_hicache_one_layer_mla(device: torch.device) -> Iterator[Sample]:
    """Both kinds of indices, several row sizes, strided rows; from the host and back on CUDA."""
    for dst_rows, src_rows, count, width in _SHAPES:
        for dtype in (torch.int32, torch.int64):
            indices = _indices(dst_rows, count, dtype, device), _indices(src_rows, count, dtype, device)
            for on_dst, on_src in ((device, device), (_host(device), device), (device, _host(device))):
                dst, src = _cache((dst_rows, width), on_dst), _cache((src_rows, 2, width), on_src)[:, 1]
                kind = torch.float16 if width == 64 else torch.bfloat16
                caches = {"cache_dst": dst.view(kind), "cache_src": src.view(kind)}
                yield {**caches, "indices_dst": indices[0], "indices_src": indices[1]}


def transfer_hicache_all_layer(device: torch.device) -> Iterator[Sample]:
    """Three layers, from a layer-first pool to a page-first one, whose layers are neighbours in a row."""
    for sample in transfer_hicache_all_layer_mla(device):
        tables: Sample = {}
        for side in ("dst", "src"):
            table = sample.pop(f"ptr_{side}")
            tables |= {f"{kv}_ptr_{side}": _keeping(half, table) for kv, half in zip("kv", table.chunk(2), strict=True)}
        others = {f"kv_{name}" if name.startswith("cache") else name: value for name, value in sample.items()}
        yield {**tables, **others}


def transfer_hicache_all_layer_mla(device: torch.device) -> Iterator[Sample]:
    """Six layers, from a layer-first pool to a page-first one, whose layers are neighbours in a row."""
    for dst_rows, src_rows, count, width in _SHAPES:
        pool_dst, pool_src = _cache((dst_rows, 6, width), _host(device)), _cache((6, src_rows, width), device)
        dst = torch.tensor([pool_dst[:, layer].data_ptr() for layer in range(6)], dtype=torch.int64)
        src = torch.tensor([pool_src[layer].data_ptr() for layer in range(6)], dtype=torch.int64)
        row = 2 * width
        yield {
            "ptr_dst": _keeping(dst, pool_dst),
            "indices_dst": _indices(dst_rows, count, torch.int64, device),
            "ptr_src": _keeping(src, pool_src),
            "indices_src": _indices(src_rows, count, torch.int64, device),
            "cache_src_stride_bytes": row,
            "cache_dst_stride_bytes": 6 * row,
            "element_size": row,
            "num_rows_src": src_rows,
            "num_rows_dst": dst_rows,
        }


def _keeping(table: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """Addresses, with a reference that keeps their memory alive."""
    table.memory = memory  # type: ignore[attr-defined]
    return table


def _host(device: torch.device) -> torch.device | str:
    return "pinned" if device.type == "cuda" else device


def _cache(shape: tuple[int, ...], where: torch.device | str) -> torch.Tensor:
    cache = torch.randint(0, 2**15, shape, dtype=torch.int16).view(torch.bfloat16)
    return cache.pin_memory() if where == "pinned" else cache.to(where)


def _like(cache: torch.Tensor) -> torch.Tensor:
    """A separate cache with the same strides."""
    other = torch.empty_strided(
        cache.shape, cache.stride(), dtype=cache.dtype, device=cache.device, pin_memory=cache.is_pinned()
    )
    return other.copy_(cache.flip(0))


def _indices(num_rows: int, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.randperm(num_rows)[:count].to(device, dtype)
