"""The calls to build ahead for, by op: the sizes of a model's MLPs, or any rows of whole loads.

A gate is beside its values or before them: nobody knows which of the two an engine has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sgljit_core import TOKENS, TensorSpec

if TYPE_CHECKING:
    from sgljit_engines.shapes import ModelShape

Calls = Iterator[dict[str, Any]]


def silu_and_mul(model: ModelShape | None) -> Calls:
    """Gates and values of each size, rounded once."""
    return _calls(model, "silu")


def gelu_and_mul(model: ModelShape | None) -> Calls:
    """As ``silu_and_mul``."""
    return _calls(model, "gelu")


def gelu_tanh_and_mul(model: ModelShape | None) -> Calls:
    """As ``silu_and_mul``."""
    return _calls(model, "gelu_tanh")


def clamped_swiglu(model: ModelShape | None) -> Calls:
    """Usual sizes in every layout, or the size of gpt-oss's experts."""
    for call in _calls(model, "clamped"):
        yield call
        if "up" not in call:
            yield {**call, "is_interleaved": True}


def silu_and_mul_quant(model: ModelShape | None) -> Calls:
    """Usual sizes; a model's config doesn't say what is quantised, and how."""
    return _quantised(model, 4096)


def clamped_swiglu_quant(model: ModelShape | None) -> Calls:
    """As ``silu_and_mul_quant``, of gpt-oss's size, and of that in whole groups; also with gates and values in turn."""
    for size in (2880, 2944):
        for call in _quantised(model, size):
            yield call
            yield {**call, "is_interleaved": True}


def silu_and_mul_masked_quant(model: ModelShape | None) -> Calls:
    """Experts of Qwen3-MoE and DeepSeek-V3: a kernel is for a size."""
    return _masked(model, (768, 2048))


def clamped_swiglu_masked_quant(model: ModelShape | None) -> Calls:
    """Experts of gpt-oss, in whole groups; also with gates and values in turn."""
    for call in _masked(model, (2944,)):
        yield call
        yield {**call, "is_interleaved": True}


def _masked(model: ModelShape | None, sizes: tuple[int, ...]) -> Calls:
    for size in sizes if model is None else ():
        rows = {
            "input": TensorSpec((TOKENS, 128, 2 * size), "bfloat16"),
            "output_q": TensorSpec((TOKENS, 128, size), "float8_e4m3fn"),
            "counts": TensorSpec((TOKENS,), "int32"),
        }
        yield {**rows, "output_s": TensorSpec((TOKENS, 128, size // 128), "float32")}
        yield {**rows, "output_s": TensorSpec((TOKENS, 128, -(-size // 512)), "int32"), "scale_ue8m0": True}


def _quantised(model: ModelShape | None, size: int) -> Calls:
    for dtype in ("float16", "bfloat16") if model is None else ():
        rows = {"input": TensorSpec((TOKENS, 2 * size), dtype), "output_q": TensorSpec((TOKENS, size), "float8_e4m3fn")}
        yield {**rows, "output_s": TensorSpec((TOKENS, 1), "float32")}
        yield {**rows, "output_s": TensorSpec((1,), "float32"), "is_static": True}
        if size % 128 == 0:
            yield {**rows, "output_s": TensorSpec((TOKENS, size // 128), "float32")}
            yield {**rows, "output_s": TensorSpec((TOKENS, -(-size // 512)), "int32"), "scale_ue8m0": True}


def _calls(model: ModelShape | None, activation: str) -> Calls:
    shapes = [(4096, dtype) for dtype in ("float16", "bfloat16", "float32")]
    if model is not None:
        of_model = "clamped" if model.model_type == "gpt_oss" else model.activation  # its config says "silu"
        sizes = {*model.mlp_sizes, model.expert_size} - {0} if activation == of_model else ()
        shapes = [(size, model.dtype) for size in sorted(sizes)]
    for size, dtype in shapes:
        rows = TensorSpec((TOKENS, size), dtype)
        yield {"input": TensorSpec((TOKENS, 2 * size), dtype), "out": rows}
        yield {"input": rows, "out": rows, "up": rows}
