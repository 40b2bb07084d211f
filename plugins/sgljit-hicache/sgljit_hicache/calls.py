"""The calls to build ahead for, by op: transfers of a model's cache, or of usual rows of one layer.

Pools have no pages, and are so large that their rows count as scattered; indices are int64, as engines have them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sgljit_core import TOKENS, Addresses, TensorSpec

if TYPE_CHECKING:
    from sgljit_engines.shapes import ModelShape

Calls = Iterator[dict[str, Any]]

_ROWS = 1 << 20  # of a pool
_LAYERS = 2  # the kernel of all layers is one for any number
_ITEM = {"bfloat16": 2, "float16": 2, "float32": 4}


def transfer_hicache_one_layer(model: ModelShape | None) -> Calls:
    """Keys and values of one layer: on the device, from the host, and to it."""
    return _one_layer(model, 2, ("k_cache", "v_cache"))


def transfer_hicache_one_layer_mla(model: ModelShape | None) -> Calls:
    """Compressed rows of one layer, likewise."""
    return _one_layer(model, 1, ("cache",))


def transfer_hicache_all_layer(model: ModelShape | None) -> Calls:
    """Keys and values of all layers, with the addresses on the CPU and on the device."""
    return _all_layers(model, 2, ("k_ptr", "v_ptr"), "kv_cache")


def transfer_hicache_all_layer_mla(model: ModelShape | None) -> Calls:
    """Compressed rows of all layers, likewise."""
    return _all_layers(model, 1, ("ptr",), "cache")


def _one_layer(model: ModelShape | None, caches: int, names: tuple[str, ...]) -> Calls:
    if model is not None:
        shapes = [(model.cache_row, model.dtype, "int64")] if model.caches == caches else []
    else:
        usual = (64, 128, 256, 512, 1024, 2048) if caches == 2 else (288, 576)
        shapes = [(row, "bfloat16", index) for row in usual for index in ("int32", "int64")]
    for row, dtype, index in shapes:
        for places in _places():
            pools = {
                f"{name}_{side}": TensorSpec((_ROWS, row), dtype, pinned=pinned)
                for side, pinned in places.items()
                for name in names
            }
            yield from _with_indices(pools, index)


def _all_layers(model: ModelShape | None, caches: int, names: tuple[str, ...], strides: str) -> Calls:
    if model is None or model.caches != caches:
        return
    stride = model.cache_row * _ITEM[model.dtype]
    for places, on_device in itertools.product(_places(), (False, True)):
        tables = {
            f"{name}_{side}": Addresses(
                TensorSpec((_ROWS, model.cache_row), model.dtype, pinned=pinned), _LAYERS, on_device
            )
            for side, pinned in places.items()
            for name in names
        }
        yield from _with_indices({**tables, **{f"{strides}_{side}_stride_bytes": stride for side in places}}, "int64")


def _places() -> Iterator[dict[str, bool]]:
    """For each direction, whether the destination and the source are in pinned host memory."""
    for dst, src in ((False, False), (False, True), (True, False)):
        yield {"dst": dst, "src": src}


def _with_indices(arguments: dict[str, Any], index: str) -> Calls:
    """With a quota of blocks, and without one."""
    indices = {f"indices_{side}": TensorSpec((TOKENS,), index) for side in ("dst", "src")}
    yield {**arguments, **indices}
    yield {**arguments, **indices, "block_quota": 2}
