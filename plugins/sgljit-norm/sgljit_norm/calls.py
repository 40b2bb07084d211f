"""The calls to build ahead for, by op: those of a model, or those of usual models.

Rows have no gaps, or are slices of a projection that begin at a whole load.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from sgljit_core import TOKENS, TensorSpec

if TYPE_CHECKING:
    from sgljit_engines.shapes import ModelShape

Calls = Iterator[dict[str, Any]]

_HIDDEN_SIZES = (2048, 2880, 3072, 4096, 5120, 6144, 7168, 8192, 16384)
_GEMMA_SIZES = (2304, 2560, 3584, 3840, 5376)
_SANDWICH_SIZES = (4096, 6144)
_LAYERNORM_SIZES = (768, 1024, 4096, 8192)
_ANY_SIZE = 1 << 20  # more than a block holds in registers: the kernel for rows of any size
_HALVES = ("float16", "bfloat16")


def rmsnorm(model: ModelShape | None) -> Calls:
    """Hidden states; with a model, what else it normalises: heads, all heads of a token, or compressed rows."""
    return _alone(model, _HIDDEN_SIZES, one_plus=False)


def gemma_rmsnorm(model: ModelShape | None) -> Calls:
    """As ``rmsnorm``."""
    return _alone(model, _GEMMA_SIZES, one_plus=True)


def fused_add_rmsnorm(model: ModelShape | None) -> Calls:
    """Hidden states."""
    return _added(model, _HIDDEN_SIZES, one_plus=False)


def gemma_fused_add_rmsnorm(model: ModelShape | None) -> Calls:
    """As ``fused_add_rmsnorm``."""
    return _added(model, _GEMMA_SIZES, one_plus=True)


def fused_rmsnorm_add_rmsnorm(model: ModelShape | None) -> Calls:
    """Hidden states of models with a norm before the addition, too."""
    return _sandwiched(_added(model, _SANDWICH_SIZES, one_plus=False), model)


def gemma_fused_rmsnorm_add_rmsnorm(model: ModelShape | None) -> Calls:
    """As ``fused_rmsnorm_add_rmsnorm``."""
    return _sandwiched(_added(model, _GEMMA_SIZES, one_plus=True), model)


def fused_inplace_qknorm(model: ModelShape | None) -> Calls:
    """Heads of queries and keys."""
    return _heads(model, (64, 128, 256), one_plus=False)


def gemma_fused_inplace_qknorm(model: ModelShape | None) -> Calls:
    """As ``fused_inplace_qknorm``."""
    return _heads(model, (256,), one_plus=True)


def fused_inplace_qknorm_across_heads(model: ModelShape | None) -> Calls:
    """All queries, and all keys, of a token."""
    if model is None or not model.rms_norm or model.traits.qk_norm != "all":
        return
    q, k = model.query_heads * model.head_dim, model.kv_heads * model.head_dim
    weights = {f"{name}_weight": TensorSpec((size,), model.dtype) for name, size in (("q", q), ("k", k))}
    yield {"q": _rows(q, model.dtype), "k": _rows(k, model.dtype), **weights}


def layernorm(model: ModelShape | None) -> Calls:
    """Hidden states, with a bias and, on the CPU, without one; no model that is known has such layers."""
    for size, dtype in _usual(_LAYERNORM_SIZES) if model is None else ():
        weight = TensorSpec((size,), dtype)
        yield {"input": _rows(size, dtype), "weight": weight, "bias": weight}
        yield {"input": _rows(size, dtype), "weight": weight}


def rmsnorm_quant(model: ModelShape | None) -> Calls:
    """Usual hidden states; a model's config doesn't say what is quantised, and how."""
    for size in _HIDDEN_SIZES if model is None else ():
        for dtype in _HALVES:
            rows = {"input": _rows(size, dtype), "weight": TensorSpec((size,), dtype)}
            rows["output_q"] = _rows(size, "float8_e4m3fn")
            for scales in (1, size // 128):
                if scales == 1 or size % 128 == 0:
                    yield {**rows, "output_s": _rows(scales, "float32")}
            if size % 512 == 0:
                yield {**rows, "output_s": _rows(size // 512, "int32"), "scale_ue8m0": True}
            yield {**rows, "output_s": TensorSpec((1,), "float32"), "is_static": True}


def fused_add_rmsnorm_quant(model: ModelShape | None) -> Calls:
    """As ``rmsnorm_quant``."""
    for call in rmsnorm_quant(model):
        yield {**call, "residual": call["input"]}


def _alone(model: ModelShape | None, usual: Iterable[int], *, one_plus: bool) -> Calls:
    shapes: Iterable[tuple[int, str]] = _usual(usual)
    if model is not None:
        shapes = [(size, model.dtype) for size in sorted(_sizes(model))] if _has(model, one_plus) else []
    for size, dtype in shapes:
        yield {"input": _rows(size, dtype), "weight": TensorSpec((size,), dtype)}
    if model is not None and _has(model, one_plus) and model.traits.qk_norm == "head":
        for heads in {model.query_heads, model.kv_heads}:
            rows = TensorSpec((TOKENS, heads, model.head_dim), model.dtype)
            yield {"input": rows, "weight": TensorSpec((model.head_dim,), model.dtype)}


def _sizes(model: ModelShape) -> set[int]:
    sizes = {model.hidden_size, *model.latent_sizes}
    if model.traits.qk_norm == "all":  # whole rows of queries and keys, where all ranks' heads are together
        sizes |= {heads * model.head_dim for heads in (model.all_query_heads, model.all_kv_heads)}
    return sizes


def _added(model: ModelShape | None, usual: Iterable[int], *, one_plus: bool) -> Calls:
    shapes: Iterable[tuple[int, str]] = _usual(usual)
    if model is not None:
        shapes = [(model.hidden_size, model.dtype)] if _has(model, one_plus) else []
    for size, dtype in shapes:
        yield {"input": _rows(size, dtype), "residual": _rows(size, dtype), "weight": TensorSpec((size,), dtype)}


def _sandwiched(calls: Calls, model: ModelShape | None) -> Calls:
    """Calls of a norm behind an addition, with the weight of a norm before it; none where a model has no such norm."""
    if model is None or model.traits.sandwich_norm:
        yield from ({**call, "next_weight": call["weight"]} for call in calls)


def _heads(model: ModelShape | None, usual: Iterable[int], *, one_plus: bool) -> Calls:
    shapes = [(32, 8, size, dtype) for size in usual for dtype in _HALVES]
    if model is not None:
        has = _has(model, one_plus) and model.traits.qk_norm == "head"
        shapes = [(model.query_heads, model.kv_heads, model.head_dim, model.dtype)] if has else []
    for query_heads, kv_heads, size, dtype in shapes:
        weight = TensorSpec((size,), dtype)
        yield {
            "q": TensorSpec((TOKENS, query_heads, size), dtype),
            "k": TensorSpec((TOKENS, kv_heads, size), dtype),
            "q_weight": weight,
            "k_weight": weight,
        }


def _has(model: ModelShape, one_plus: bool) -> bool:
    """Whether a model has RMSNorm, with weights of this kind."""
    return model.rms_norm and model.traits.one_plus == one_plus


def _usual(sizes: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Each size in the dtypes that models have, rows of any size, and float32, whose loop the CPU needs."""
    for dtype in _HALVES:
        yield from ((size, dtype) for size in sizes)
        yield _ANY_SIZE, dtype
    yield _ANY_SIZE, "float32"


def _rows(size: int, dtype: str) -> TensorSpec:
    return TensorSpec((TOKENS, size), dtype)
