"""The calls to build ahead for, by op: the heads of a model, or usual heads, with positions as engines have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from sgljit_core import TOKENS, TensorSpec

if TYPE_CHECKING:
    from sgljit_engines.shapes import ModelShape

Calls = Iterator[dict[str, Any]]

_TABLE = ("cos_sin_cache", "positions")
_GIVEN = ("cos", "sin")
_STORED = ("v", "k_cache", "v_cache", "out_loc")
_NORMED = ("q_weight", "k_weight", "gemma")
_SLOTS = 1 << 16
_POSITIONS = 1 << 15


def apply_rope_inplace(model: ModelShape | None) -> Calls:
    """Queries and keys, as much of a head as is rotated; of latent attention, the part that has positions."""
    return _calls(model, without=(*_GIVEN, *_STORED, *_NORMED))


def apply_rotary_pos_emb_inplace(model: ModelShape | None) -> Calls:
    """The same, with angles of the model's dtype."""
    return _calls(model, without=(*_TABLE, *_STORED, *_NORMED))


def apply_rotary_pos_emb(model: ModelShape | None) -> Calls:
    """The same as one batch, in the heads of a projection; only whole heads whose halves turn together.

    gpt-oss has an angle for each pair.
    """
    for call in apply_rotary_pos_emb_inplace(model):
        if not call.get("is_neox", True) or call["cos"].shape[-1] != call["q"].shape[-1]:
            continue
        q, k = (
            TensorSpec((1, heads, tokens, size), x.dtype, (heads * size, size, heads * size, 1))
            for x in (call["q"], call["k"])
            for tokens, heads, size in [x.shape]
        )
        tokens, size = call["cos"].shape
        size //= 2 if model is not None and model.traits.half_angles else 1
        angles = TensorSpec((1, tokens, size), q.dtype, (size, size, 1))
        yield {"q": q, "k": k, "cos": angles, "sin": angles, "q_out": q, "k_out": k}


def apply_rope_inplace_with_kvcache(model: ModelShape | None) -> Calls:
    """As ``apply_rope_inplace``, with caches; not of latent attention, whose cache has no heads."""
    return _calls(model, without=(*_GIVEN, *_NORMED))


def apply_rope_inplace_with_mla_kvcache(model: ModelShape | None) -> Calls:
    """Latent attention: a row of 512 elements, and 64 that are rotated, if no model says other sizes."""
    heads, nope = _Heads(128, 1, 64, 64, "bfloat16", {"is_neox": False}), 512
    if model is not None:
        if not model.latent_sizes or model.rope_dim < 2:
            return
        heads, nope = _of_model(model), model.cache_row - model.rope_dim
    parts = [TensorSpec((TOKENS, 1, size), heads.dtype) for size in (nope, heads.size)]
    index = TensorSpec((TOKENS,), "int64")
    yield {
        "q_rope": TensorSpec((TOKENS, heads.queries, heads.size), heads.dtype),
        "k_nope": parts[0],
        "k_rope": parts[1],
        "kv_buffer": TensorSpec((_SLOTS, 1, nope + heads.size), heads.dtype),
        "cos_sin_cache": TensorSpec((_POSITIONS, heads.rope_dim), "float32"),
        "positions": index,
        "out_loc": index,
        **heads.options,
    }


def fused_qk_norm_rope(model: ModelShape | None) -> Calls:
    """Queries and keys of models that normalise each head."""
    return _calls(model, without=(*_GIVEN, *_STORED))


def fused_qk_norm_rope_with_kvcache(model: ModelShape | None) -> Calls:
    """The same, with caches."""
    return _calls(model, without=_GIVEN)


class _Heads(NamedTuple):
    """The heads of queries and keys of a token, and what is done with them."""

    queries: int
    keys: int
    size: int
    rope_dim: int
    dtype: str
    options: Mapping[str, bool] = MappingProxyType({})  # those that are not the default


def _of_model(model: ModelShape) -> _Heads:
    options = {"is_neox": False} if model.traits.interleaved else {}
    if model.latent_sizes:  # one key for all heads
        return _Heads(model.query_heads, 1, model.rope_dim, model.rope_dim, model.dtype, options)
    options |= {"gemma": True} if model.traits.one_plus else {}
    return _Heads(model.query_heads, model.kv_heads, model.head_dim, model.rope_dim, model.dtype, options)


def _calls(model: ModelShape | None, *, without: tuple[str, ...]) -> Calls:
    shapes = [_Heads(32, 8, size, size, dtype) for size in (64, 128, 256) for dtype in ("bfloat16", "float16")]
    if model is not None:
        is_normed, is_stored = "q_weight" not in without, "k_cache" not in without
        has = not (is_normed and model.traits.qk_norm != "head") and not (is_stored and model.latent_sizes)
        shapes = [_of_model(model)] if has and model.rope_dim > 1 else []
    for queries, kv_heads, size, rope_dim, dtype, options in shapes:
        keys, cache = (TensorSpec((count, kv_heads, size), dtype) for count in (TOKENS, _SLOTS))
        weight, index = TensorSpec((size,), dtype), TensorSpec((TOKENS,), "int64")
        angles = TensorSpec((TOKENS, rope_dim), dtype)
        arguments = {
            "q": TensorSpec((TOKENS, queries, size), dtype),
            "k": keys,
            "v": keys,
            "q_weight": weight,
            "k_weight": weight,
            "k_cache": cache,
            "v_cache": cache,
            "cos_sin_cache": TensorSpec((_POSITIONS, rope_dim), "float32"),
            "cos": angles,
            "sin": angles,
            "positions": index,
            "out_loc": index,
            **options,
        }
        yield {name: argument for name, argument in arguments.items() if name not in without}
