"""The calls to build ahead for, by op: the heads of a model, or usual heads, with positions as engines have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sgljit_core import TOKENS, TensorSpec

if TYPE_CHECKING:
    from sgljit_engines.shapes import ModelShape

Calls = Iterator[dict[str, Any]]

_TABLE = ("cos_sin_cache", "positions")
_GIVEN = ("cos", "sin")
_STORED = ("v", "k_cache", "v_cache", "out_loc")
_WEIGHTS = ("q_weight", "k_weight")
_SLOTS = 1 << 16
_POSITIONS = 1 << 15


def apply_rope_inplace(model: ModelShape | None) -> Calls:
    """Queries and keys, wholly rotated."""
    return _calls(model, without=(*_GIVEN, *_STORED, *_WEIGHTS))


def apply_rotary_pos_emb_inplace(model: ModelShape | None) -> Calls:
    """The same, with angles of the model's dtype."""
    return _calls(model, without=(*_TABLE, *_STORED, *_WEIGHTS))


def apply_rotary_pos_emb(model: ModelShape | None) -> Calls:
    """The same as one batch, in the heads of a projection."""
    for call in apply_rotary_pos_emb_inplace(model):
        q, k = (
            TensorSpec((1, heads, tokens, size), x.dtype, (heads * size, size, heads * size, 1))
            for x in (call["q"], call["k"])
            for tokens, heads, size in [x.shape]
        )
        angles = TensorSpec((1, *call["cos"].shape), q.dtype, (q.shape[-1], q.shape[-1], 1))
        yield {"q": q, "k": k, "cos": angles, "sin": angles, "q_out": q, "k_out": k}


def apply_rope_inplace_with_kvcache(model: ModelShape | None) -> Calls:
    """As ``apply_rope_inplace``, with caches."""
    return _calls(model, without=(*_GIVEN, *_WEIGHTS))


def fused_qk_norm_rope(model: ModelShape | None) -> Calls:
    """Queries and keys of models that normalise each head."""
    return _calls(model, without=(*_GIVEN, *_STORED))


def fused_qk_norm_rope_with_kvcache(model: ModelShape | None) -> Calls:
    """The same, with caches."""
    return _calls(model, without=_GIVEN)


def _calls(model: ModelShape | None, *, without: tuple[str, ...]) -> Calls:
    shapes = [(32, 8, size, dtype) for size in (64, 128, 256) for dtype in ("bfloat16", "float16")]
    if model is not None:
        is_normed = "q_weight" not in without
        has = model.head_dim > 0 and (not is_normed or model.traits.qk_norm == "head")
        shapes = [(model.query_heads, model.kv_heads, model.head_dim, model.dtype)] if has else []
    for query_heads, kv_heads, size, dtype in shapes:
        keys, cache = (TensorSpec((count, kv_heads, size), dtype) for count in (TOKENS, _SLOTS))
        weight, index = TensorSpec((size,), dtype), TensorSpec((TOKENS,), "int64")
        angles = TensorSpec((TOKENS, size), dtype)
        arguments = {
            "q": TensorSpec((TOKENS, query_heads, size), dtype),
            "k": keys,
            "v": keys,
            "q_weight": weight,
            "k_weight": weight,
            "k_cache": cache,
            "v_cache": cache,
            "cos_sin_cache": TensorSpec((_POSITIONS, size), "float32"),
            "cos": angles,
            "sin": angles,
            "positions": index,
            "out_loc": index,
        }
        yield {name: spec for name, spec in arguments.items() if name not in without}
