"""The calls to build ahead for, by op: the experts of models. Engines have ids of int32, transformers of int64."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sgljit_core import TOKENS, TensorSpec

if TYPE_CHECKING:
    from sgljit_engines.shapes import ModelShape

Calls = Iterator[dict[str, Any]]
Models = dict[str, tuple[tuple[int, int], ...]]

# By the ``model_type`` of a config: experts, and how many of a token. Models of one type can differ.
_SOFTMAX: Models = {
    "qwen3_moe": ((128, 8),),
    "gpt_oss": ((32, 4), (128, 4)),
    "mixtral": ((8, 2),),
}
_SIGMOID: Models = {
    "deepseek_v3": ((256, 8),),
    "kimi_k2": ((384, 8),),
    "glm4_moe": ((128, 8), (160, 8)),
    "minimax_m2": ((256, 8),),
}
_SQRT_SOFTPLUS: Models = {"deepseek_v4": ((256, 6), (384, 6))}
_GROUPS = {"deepseek_v3": {"num_expert_group": 8, "topk_group": 4}}

# By the type of a model, the elements of a token, and of one inside of an expert: Qwen3-30B-A3B, Mixtral 8x7B, and both
# of gpt-oss.
_SIZES = {"qwen3_moe": (2048, 768), "mixtral": (4096, 14336), "gpt_oss": (2880, 2880)}


def topk_softmax(model: ModelShape | None) -> Calls:
    """Qwen3-MoE, gpt-oss and Mixtral: the weights are renormalised. Transformers has them in the dtype of the gates."""
    for _, call in _calls(_SOFTMAX, model):
        yield call
        if call["topk_ids"].dtype == "int64" and call["gating_output"].dtype != "float32":
            yield {**call, "topk_weights": TensorSpec(call["topk_weights"].shape, call["gating_output"].dtype)}


def topk_sigmoid(model: ModelShape | None) -> Calls:
    """DeepSeek V3, Kimi K2, GLM-4.5 and MiniMax M2: with a bias, and DeepSeek's with groups."""
    return _biased(_SIGMOID, model)


def topk_sqrtsoftplus(model: ModelShape | None) -> Calls:
    """DeepSeek V4: with a bias."""
    return _biased(_SQRT_SOFTPLUS, model)


def _biased(models: Models, model: ModelShape | None) -> Calls:
    for model_type, call in _calls(models, model):
        bias = TensorSpec(call["gating_output"].shape[1:], "float32")
        yield {**call, "correction_bias": bias, **_GROUPS.get(model_type, {})}


def moe_sum(model: ModelShape | None) -> Calls:
    """With and without weights, of float32 or of the dtype of the model, as transformers has them.

    A kernel is for a number of experts up to 16, and serves any hidden size.
    """
    for dtype in ("bfloat16", "float16") if model is None else (model.dtype,):
        hidden = 4096 if model is None else model.hidden_size
        for k in _experts_of_a_token(model):
            call = {"input": TensorSpec((TOKENS, k, hidden), dtype), "output": TensorSpec((TOKENS, hidden), dtype)}
            yield call
            for of_weights in dict.fromkeys(("float32", dtype)):
                yield {**call, "topk_weights": TensorSpec((TOKENS, k), of_weights)}


def _experts_of_a_token(model: ModelShape | None) -> list[int]:
    """As models of the type have it; 8, as most have, without a model or for another type; none for a dense model."""
    if not _has_experts(model):
        return []
    known = (
        [] if model is None else [models.get(model.model_type, ()) for models in (_SOFTMAX, _SIGMOID, _SQRT_SOFTPLUS)]
    )
    return sorted({k for pairs in known for _, k in pairs}) or [8]


def _has_experts(model: ModelShape | None) -> bool:
    """Whether a model has routed experts, by its sizes or by its type; true without a model."""
    return model is None or bool(model.expert_size) or model.model_type in {**_SOFTMAX, **_SIGMOID, **_SQRT_SOFTPLUS}


def moe_align_block_size(model: ModelShape | None) -> Calls:
    """One block and a cluster. A kernel serves any number of experts, and any size of blocks."""
    if not _has_experts(model):
        return
    yield {
        "topk_ids": TensorSpec((TOKENS, 8), "int32"),
        "num_experts": 256,
        "block_size": 64,
        "sorted_token_ids": TensorSpec((1 << 24,), "int32"),
        "expert_ids": TensorSpec((1 << 18,), "int32"),
        "num_tokens_post_pad": TensorSpec((1,), "int32"),
    }


def sort_by_expert(model: ModelShape | None) -> Calls:
    """The kernels of few pairs and of many, for models with experts."""
    if not _has_experts(model):
        return
    for dtype in ("int32", "int64"):
        pairs = TensorSpec((TOKENS,), "int32")
        ids = {"topk_ids": TensorSpec((TOKENS, 1), dtype), "ends": TensorSpec((256,), "int32")}
        yield {**ids, "pairs": pairs, "expert_ids": pairs, "places": pairs}


def expert_matvec(model: ModelShape | None) -> Calls:
    """Both products of an expert, for ids of both types; gpt-oss has its columns' elements side by side, and a bias.

    The first may have a row for each token, here of two, as a kernel serves any number from there on.
    """
    sizes, dtype = _SIZES, "bfloat16"
    if model is not None:
        sizes, dtype = {model.model_type: (model.hidden_size, model.expert_size)}, model.dtype
    for model_type, (hidden, inside) in sizes.items() if model is None or model.expert_size else ():
        for of_ids, (n, m) in itertools.product(("int32", "int64"), ((hidden, 2 * inside), (inside, hidden))):
            strides = (m * n, 1, m) if model_type == "gpt_oss" else None
            for bias in (None, TensorSpec((8, m), dtype)) if model_type == "gpt_oss" else (None,):
                expert = {"weight": TensorSpec((8, m, n), dtype, strides), "bias": bias}
                yield {
                    "x": TensorSpec((TOKENS, n), dtype),
                    "expert_ids": TensorSpec((TOKENS,), of_ids),
                    "output": TensorSpec((TOKENS, m), dtype),
                    **expert,
                }
                if m == 2 * inside:
                    yield {
                        "x": TensorSpec((2, n), dtype),
                        "expert_ids": TensorSpec((2, 4), of_ids),
                        "output": TensorSpec((8, m), dtype),
                        **expert,
                    }


def _calls(models: Models, model: ModelShape | None) -> Iterator[tuple[str, dict[str, Any]]]:
    for model_type, sizes in models.items():
        if model is not None and model.model_type != model_type:
            continue
        # Engines compute gates in the model's dtype or in float32.
        dtypes = dict.fromkeys(("float32", "bfloat16" if model is None else model.dtype))
        for dtype, of_ids in itertools.product(dtypes, ("int32", "int64")):
            for experts, k in sizes:
                yield (
                    model_type,
                    {
                        "topk_weights": TensorSpec((TOKENS, k), "float32"),
                        "topk_ids": TensorSpec((TOKENS, k), of_ids),
                        "gating_output": TensorSpec((TOKENS, experts), dtype),
                        "renormalize": True,
                    },
                )
