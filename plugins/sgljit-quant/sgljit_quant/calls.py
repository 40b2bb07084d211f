"""The calls to build ahead for, by op: hidden sizes of usual models. A model's config doesn't say what is quantised."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sgljit_core import TOKENS, TensorSpec

if TYPE_CHECKING:
    from sgljit_engines.shapes import ModelShape

_HIDDEN_SIZES = (2048, 2880, 3072, 4096, 5120, 6144, 7168, 8192, 16384)
_ANY_SIZE = 1 << 20  # more than a block holds in registers: the kernel for rows of any size


def per_tensor_quant_fp8(model: ModelShape | None) -> Iterator[dict[str, Any]]:
    """Tensors of any size, with a given scale and a computed one."""
    for dtype in ("float16", "bfloat16", "float32") if model is None else ():
        for is_static in (False, True):
            scale = TensorSpec((1,), "float32")
            yield {**_rows(4096, dtype), "output_s": scale, "is_static": is_static}


def per_token_quant_fp8(model: ModelShape | None) -> Iterator[dict[str, Any]]:
    """Rows of hidden states, and of any size."""
    if model is not None:
        return
    shapes = [(size, dtype) for dtype in ("float16", "bfloat16") for size in (*_HIDDEN_SIZES, _ANY_SIZE)]
    for size, dtype in (*shapes, (_ANY_SIZE, "float32")):
        yield {**_rows(size, dtype), "output_s": TensorSpec((TOKENS, 1), "float32")}


def per_token_group_quant_fp8(model: ModelShape | None) -> Iterator[dict[str, Any]]:
    """Groups of 128 elements. Their kernels serve any hidden size, and any layout of the scales."""
    for dtype in ("float16", "bfloat16", "float32") if model is None else ():
        yield {**_rows(4096, dtype), "output_s": TensorSpec((TOKENS, 4096 // 128), "float32")}
        packed = TensorSpec((TOKENS, 4096 // 512), "int32")
        yield {**_rows(4096, dtype), "output_s": packed, "scale_ue8m0": True}


def masked_group_quant_fp8(model: ModelShape | None) -> Iterator[dict[str, Any]]:
    """Usual sizes of rows before both products of an expert, for any number of rows: a kernel is for a size."""
    for size in (2048, 4096, 7168) if model is None else ():
        rows = {
            "input": TensorSpec((TOKENS, 128, size), "bfloat16"),
            "output_q": TensorSpec((TOKENS, 128, size), "float8_e4m3fn"),
            "counts": TensorSpec((TOKENS,), "int32"),
        }
        yield {**rows, "output_s": TensorSpec((TOKENS, 128, size // 128), "float32")}
        yield {**rows, "output_s": TensorSpec((TOKENS, 128, size // 512), "int32"), "scale_ue8m0": True}


def per_token_quant_int8(model: ModelShape | None) -> Iterator[dict[str, Any]]:
    """Hidden states of one usual size, and rows of any."""
    for dtype in ("float16", "bfloat16") if model is None else ():
        for size in (4096, _ANY_SIZE):
            yield {**_rows(size, dtype, "int8"), "output_s": TensorSpec((TOKENS, 1), "float32")}


def per_token_group_quant_int8(model: ModelShape | None) -> Iterator[dict[str, Any]]:
    """As ``per_token_group_quant_fp8``."""
    for dtype in ("float16", "bfloat16") if model is None else ():
        yield {**_rows(4096, dtype, "int8"), "output_s": TensorSpec((TOKENS, 4096 // 128), "float32")}


def _rows(size: int, dtype: str, quantized: str = "float8_e4m3fn") -> dict[str, TensorSpec]:
    return {"input": TensorSpec((TOKENS, size), dtype), "output_q": TensorSpec((TOKENS, size), quantized)}
