"""The calls to build ahead for, by op: logits of usual vocabularies. Engines compute them in float32 or bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sgljit_core import TOKENS, TensorSpec

if TYPE_CHECKING:
    from sgljit_engines.shapes import ModelShape

Calls = Iterator[dict[str, Any]]

# That of Qwen3, and one that vectors do not divide: its kernel serves all such vocabularies.
_VOCABULARIES = (151936, 50257)


def softmax(model: ModelShape | None) -> Calls:
    """Into probabilities of the logits' dtype."""
    for logits in _logits(model):
        yield {"input": logits, "output": logits}


def argmax(model: ModelShape | None) -> Calls:
    """With ids as PyTorch and as engines have them."""
    for logits in _logits(model):
        for dtype in ("int64", "int32"):
            yield {"input": logits, "output": TensorSpec((TOKENS,), dtype)}


def _logits(model: ModelShape | None) -> Iterator[TensorSpec]:
    dtypes = ("float32", "bfloat16") if model is None else dict.fromkeys(("float32", model.dtype))
    for dtype in dtypes:
        for vocabulary in (model.vocabulary,) if model is not None and model.vocabulary else _VOCABULARIES:
            yield TensorSpec((TOKENS, vocabulary), dtype)
