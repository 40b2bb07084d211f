"""The calls to build ahead for, by op: the sizes of the model that it is named for, or those of a fitting config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from sgljit_core import TOKENS, TensorSpec

if TYPE_CHECKING:
    from sgljit_engines.shapes import ModelShape

Calls = Iterator[dict[str, Any]]

_SLOTS = 1 << 16
_POSITIONS = 1 << 15
_INDEX = TensorSpec((TOKENS,), "int64")


class _Heads(NamedTuple):
    queries: int
    keys: int
    size: int
    rope_dim: int
    dtype: str = "bfloat16"


def qwen3(model: ModelShape | None) -> Calls:
    """Dense models and those of experts."""
    for heads in _heads(model, ("qwen3", "qwen3_moe"), _Heads(32, 8, 128, 128)):
        yield {"q": _rows(heads, heads.queries), **_weights(heads, heads.size, heads.size), **_stored(heads)}


def qwen3_next(model: ModelShape | None) -> Calls:
    """Each head of queries beside its gate."""
    for heads in _heads(model, ("qwen3_next",), _Heads(16, 2, 256, 64)):
        both = TensorSpec((TOKENS, heads.queries, 2 * heads.size), heads.dtype)
        yield {"q_and_gate": both, **_weights(heads, heads.size, heads.size), **_stored(heads)}


def gpt_oss(model: ModelShape | None) -> Calls:
    """Without norms."""
    for heads in _heads(model, ("gpt_oss",), _Heads(64, 8, 64, 64)):
        yield {"q": _rows(heads, heads.queries), **_stored(heads)}


def minimax_m2(model: ModelShape | None) -> Calls:
    """Norms over all heads."""
    for heads in _heads(model, ("minimax_m2",), _Heads(48, 8, 128, 64)):
        weights = _weights(heads, heads.queries * heads.size, heads.keys * heads.size)
        yield {"q": _rows(heads, heads.queries), **weights, **_stored(heads)}


def deepseek_v3(model: ModelShape | None) -> Calls:
    """Latent rows, slices of one projection."""
    if model is None:
        q_rank, kv_rank, rope_dim, dtype = 1536, 512, 64, "bfloat16"
    elif len(model.latent_sizes) == 2:
        (q_rank, kv_rank), rope_dim, dtype = model.latent_sizes, model.rope_dim, model.dtype
    else:
        return
    row = kv_rank + rope_dim
    yield {
        "q_latent": TensorSpec((TOKENS, q_rank), dtype, (q_rank + row, 1)),
        "kv_latent": TensorSpec((TOKENS, row), dtype, (q_rank + row, 1)),
        "q_weight": TensorSpec((q_rank,), dtype),
        "kv_weight": TensorSpec((kv_rank,), dtype),
        "cos_sin": TensorSpec((_POSITIONS, rope_dim), "float32"),
        "positions": _INDEX,
        "kv_cache": TensorSpec((_SLOTS, row), dtype),
        "slots": _INDEX,
    }


def gemma3(model: ModelShape | None) -> Calls:
    """Hidden states."""
    if model is None:
        sizes = [(hidden, "bfloat16") for hidden in (2560, 3840, 5376)]
    else:
        sizes = [(model.hidden_size, model.dtype)] if model.model_type == "gemma3_text" else []
    for hidden, dtype in sizes:
        rows, weight = TensorSpec((TOKENS, hidden), dtype), TensorSpec((hidden,), dtype)
        yield {"x": rows, "residual": rows, "after": weight, "before": weight}


def _heads(model: ModelShape | None, types: tuple[str, ...], usual: _Heads) -> Iterator[_Heads]:
    if model is None:
        yield usual
    elif model.model_type in types:
        yield _Heads(model.query_heads, model.kv_heads, model.head_dim, model.rope_dim, model.dtype)


def _rows(heads: _Heads, number: int) -> TensorSpec:
    return TensorSpec((TOKENS, number, heads.size), heads.dtype)


def _weights(heads: _Heads, q_size: int, k_size: int) -> dict[str, TensorSpec]:
    return {name: TensorSpec((size,), heads.dtype) for name, size in (("q_weight", q_size), ("k_weight", k_size))}


def _stored(heads: _Heads) -> dict[str, TensorSpec]:
    rows, cache = _rows(heads, heads.keys), TensorSpec((_SLOTS, heads.keys, heads.size), heads.dtype)
    where = {"cos_sin": TensorSpec((_POSITIONS, heads.rope_dim), "float32"), "positions": _INDEX, "slots": _INDEX}
    return {"k": rows, "v": rows, "k_cache": cache, "v_cache": cache, **where}
