"""The calls to build ahead for: eight experts of a token, as most models have, in rows without gaps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sgljit_core import TOKENS, TensorSpec


def moe_sum(model: Any) -> Iterator[dict[str, Any]]:
    """With and without weights, for a model's dtype and hidden size or the usual ones."""
    for dtype in ("bfloat16", "float16") if model is None else (model.dtype,):
        hidden = 4096 if model is None else model.hidden_size
        call = {"input": TensorSpec((TOKENS, 8, hidden), dtype), "output": TensorSpec((TOKENS, hidden), dtype)}
        yield call
        yield {**call, "topk_weights": TensorSpec((TOKENS, 8), "float32")}
