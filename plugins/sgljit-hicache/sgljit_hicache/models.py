"""Which transfers does a model's cache ask for?

It follows the choice of csrc/hicache_launch.h for caches without pages, and indices of int64, as engines have them:
rows of one layer, and rows of all layers with their addresses in the launch or on the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from .ops import LAYER_TABLES, MANY_LAYERS, ONE_LAYER, host_module, words_and_lanes
from .plugin import FAMILY

if TYPE_CHECKING:
    from sgljit_core.engines.shapes import ModelShape


def model_variants(shape: ModelShape, ops: frozenset[str] | None, device: str) -> Iterator[Callable[[], Any]]:
    """The variants that transfers of a model's cache ask for; see ``KernelFamily.model_variants``."""
    suffix = "_mla" if shape.caches == 1 else ""
    places = {
        f"transfer_hicache_one_layer{suffix}": (ONE_LAYER,),
        f"transfer_hicache_all_layer{suffix}": (MANY_LAYERS, LAYER_TABLES),
    }
    layers = [layer for op, of_op in places.items() if ops is None or op in ops for layer in of_op]
    if not layers:
        return
    yield host_module
    if device == "cpu":
        yield functools.partial(FAMILY.build_deferred, "hicache_cpu.cpp", "transfer_on_cpu")
        yield functools.partial(FAMILY.build_deferred, "hicache_check.cpp", "check_on_cpu")  # the default on the CPU
        yield functools.partial(FAMILY.build_deferred, "hicache_check_layers.cpp", "check_layers_on_cpu")
        return
    row_bytes = shape.cache_row * getattr(torch, shape.dtype).itemsize
    kernel = functools.partial(FAMILY.build_variant, "hicache.cuh", "hicache::copy_rows", row_bytes)
    for place in layers:
        for word, lanes in words_and_lanes(row_bytes, min(16, row_bytes & -row_bytes)):
            yield functools.partial(kernel, word, shape.caches, lanes, False, torch.int64, place)
