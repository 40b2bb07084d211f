"""The calls to build ahead for, by op: the heads of a model, or usual heads, with indices as engines have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sgljit_core import TOKENS, TensorSpec

if TYPE_CHECKING:
    from sgljit_engines.shapes import ModelShape

Calls = Iterator[dict[str, Any]]

_SLOTS = 1 << 16
_INDEX = TensorSpec((TOKENS,), "int64")


def store_cache(model: ModelShape | None) -> Calls:
    """Keys and values by head, in slots and in blocks; a kernel serves every dtype, and blocks of any size."""
    shapes = [(8, size, "bfloat16") for size in (64, 128, 256)]
    if model is not None:
        shapes = [(model.kv_heads, model.head_dim, model.dtype)] if model.caches == 2 else []
    for heads, size, dtype in shapes:
        rows, cache = (TensorSpec((count, heads, size), dtype) for count in (TOKENS, _SLOTS))
        call = {"k": rows, "v": rows, "k_cache": cache, "v_cache": cache, "indices": _INDEX}
        yield call
        blocks = TensorSpec((_SLOTS // 16, heads, 16, size), dtype)
        yield {**call, "k_cache": blocks, "v_cache": blocks, "heads_first": True}


gather_cache = store_cache


def set_mla_kv_buffer(model: ModelShape | None) -> Calls:
    """Latent rows of 512 elements, with 64 that are rotated: all models of the kind have these."""
    dtypes: tuple[str, ...] = ("bfloat16",)
    if model is not None:
        dtypes = (model.dtype,) if model.caches == 1 and model.cache_row == 512 + 64 else ()
    for dtype in dtypes:
        buffer, nope, rope = (
            TensorSpec((count, 1, size), dtype) for count, size in ((_SLOTS, 576), (TOKENS, 512), (TOKENS, 64))
        )
        yield {"kv_buffer": buffer, "loc": _INDEX, "k_nope": nope, "k_rope": rope}


def set_mla_kv_buffer_fp8(model: ModelShape | None) -> Calls:
    """The same in rows of 656 bytes."""
    for call in set_mla_kv_buffer(model):
        yield {**call, "kv_buffer": TensorSpec((_SLOTS, 1, 656), "uint8")}


def concat_mla_q(model: ModelShape | None) -> Calls:
    """Queries of latent rows; a kernel serves any number of heads, any size and every dtype."""
    for call in set_mla_kv_buffer(model):
        dtype = call["k_nope"].dtype
        q, nope, rope = (TensorSpec((TOKENS, 128, size), dtype) for size in (576, 512, 64))
        yield {"q": q, "q_nope": nope, "q_rope": rope}


def concat_mla_k(model: ModelShape | None) -> Calls:
    """Keys of 128 elements, with 64 that are rotated."""
    for call in set_mla_kv_buffer(model):
        dtype = call["k_nope"].dtype
        k, nope = (TensorSpec((TOKENS, 128, size), dtype) for size in (192, 128))
        yield {"k": k, "k_nope": nope, "k_rope": TensorSpec((TOKENS, 1, 64), dtype)}


def append_to_window(model: ModelShape | None) -> Calls:
    """The heads of a model, whose config may not say that its caches are windows: a kernel serves rows of any size."""
    shapes = [(8, 128, "bfloat16")]
    if model is not None:
        shapes = [(model.kv_heads, model.head_dim, model.dtype)] if model.caches == 2 else []
    for heads, size, dtype in shapes:
        cache, rows = (TensorSpec((TOKENS, heads, count, size), dtype) for count in (2, 1))
        yield {"k_cache": cache, "v_cache": cache, "k": rows, "v": rows}
