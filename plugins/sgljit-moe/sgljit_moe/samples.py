"""Arguments for each op by name, for tests and benchmarks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

Sample = dict[str, Any]

# Experts, how many of them, and the groups, by the dtype of gates: Qwen3-MoE, DeepSeek V3, gpt-oss, DeepSeek V2; Kimi
# K2, GLM-4.5, MiniMax M2, and odd ones.
MODELS = {
    torch.bfloat16: ((128, 8, 1, 1), (256, 8, 8, 4), (32, 4, 1, 1), (160, 6, 8, 3)),
    torch.float16: ((128, 8, 1, 1),),
    torch.float32: (
        *((384, 8, 1, 1), (160, 8, 1, 1), (256, 8, 1, 1), (256, 8, 8, 4)),
        *((1, 1, 1, 1), (57, 3, 19, 5), (7, 7, 1, 1), (4097, 32, 1, 1)),
    ),
}


def topk_softmax(device: torch.device) -> Iterator[Sample]:
    """Every dtype of gates and of ids, with and without bias, groups and renormalisation; dense and strided rows."""
    for (dtype, models), tokens in itertools.product(MODELS.items(), (0, 1, 37)):
        for experts, k, groups, topk_group in models:
            yield from _samples(dtype, tokens, experts, k, groups, topk_group, device)


topk_sigmoid = topk_sqrtsoftplus = topk_softmax


def moe_sum(device: torch.device) -> Iterator[Sample]:
    """Every dtype, with and without weights; dense and strided rows, whole loads and not."""
    for dtype, tokens, (k, hidden) in itertools.product(
        (torch.bfloat16, torch.float16, torch.float32), (0, 1, 9), ((8, 2048), (6, 1000), (4, 7), (1, 1), (0, 64))
    ):
        both = torch.randn(tokens, k, 2 * hidden, device=device).to(dtype)
        output = torch.empty(tokens, 2 * hidden, dtype=dtype, device=device)
        yield {"input": both[..., :hidden].contiguous(), "output": output[:, :hidden].contiguous()}
        weights = torch.rand(k, tokens, device=device).t()
        strided = {"input": both[..., hidden:], "output": output[:, hidden:], "routed_scaling_factor": 2.5}
        for of_weights in dict.fromkeys((torch.float32, dtype)):
            yield {**strided, "topk_weights": weights.to(of_weights)}


def moe_align_block_size(device: torch.device) -> Iterator[Sample]:
    """Both types of ids, some of no expert; no pair, few, one block's and a cluster's; outputs larger than needed."""
    cases = (
        (0, 8, 256, 64),
        (1, 1, 1, 1),
        (1, 8, 256, 64),
        (7, 3, 57, 5),
        (600, 2, 8, 16),
        (333, 8, 384, 128),
        (1000, 8, 256, 64),
        (2001, 5, 2048, 7),
    )
    for (tokens, k, experts, block_size), dtype in itertools.product(cases, (torch.int32, torch.int64)):
        ids = torch.randint(-1, experts + 1, (tokens, k), device=device).to(dtype)
        size = tokens * k + experts * (block_size - 1)
        sorted_token_ids = torch.empty(size + 3, dtype=torch.int32, device=device)
        yield {
            "topk_ids": ids,
            "num_experts": experts,
            "block_size": block_size,
            "sorted_token_ids": sorted_token_ids[3:] if dtype == torch.int64 else sorted_token_ids,
            "expert_ids": torch.empty(size // block_size + 2, dtype=torch.int32, device=device),
            "num_tokens_post_pad": torch.empty(1, dtype=torch.int32, device=device),
        }


def sort_by_expert(device: torch.device) -> Iterator[Sample]:
    """Both types of ids, some of no expert; no pair, few, one block's and a cluster's."""
    cases = ((0, 8, 256), (1, 1, 1), (1, 4, 32), (7, 3, 57), (600, 2, 8), (333, 8, 384), (2001, 5, 2048))
    for (tokens, k, experts), dtype in itertools.product(cases, (torch.int32, torch.int64)):
        outputs = torch.empty(3, tokens * k, dtype=torch.int32, device=device)
        yield {
            "topk_ids": torch.randint(-1, experts + 1, (tokens, k), device=device).to(dtype),
            **dict(zip(("pairs", "expert_ids", "places"), outputs, strict=True)),
            "ends": torch.empty(experts, dtype=torch.int32, device=device),
        }


def expert_matvec(device: torch.device) -> Iterator[Sample]:
    """Every dtype and both types of ids; no row, one and several, of one product or more; both layouts; with a bias."""
    sizes = ((8, 96, 64), (4, 5, 2048), (4, 2048, 70), (3, 7, 33), (2, 3, 1), (2, 1, 3), (1, 2, 0))
    dtypes = ((torch.bfloat16, torch.int64), (torch.float16, torch.int32), (torch.float32, torch.int64))
    for (dtype, index), rows, (experts, m, n) in itertools.product(dtypes, (0, 1, 6), sizes):
        x = torch.randn(rows, 2 * n, device=device).to(dtype)
        weight = torch.randn(experts, m, 2 * n, device=device).to(dtype)
        columns = torch.randn(experts, n, 2 * m, device=device).to(dtype).transpose(1, 2)
        output = torch.empty(rows, 2 * m, dtype=dtype, device=device)
        ids = torch.randint(experts, (rows,), device=device).to(index)
        for matrices in (weight[..., n:], columns[:, m:]):
            yield {"x": x[:, n:], "weight": matrices, "expert_ids": ids, "output": output[:, m:]}
        dense = {"x": x[:, :n].contiguous(), "expert_ids": ids, "output": output[:, :m].contiguous()}
        yield {**dense, "weight": weight[..., :n].contiguous()}
        by_columns = columns[:, :m].transpose(1, 2).contiguous().transpose(1, 2)
        yield {**dense, "weight": by_columns}
        more = torch.randn(experts, 2 * m, device=device).to(dtype)[:, m:]
        for repeats, matrices in itertools.product((1, 3), (weight[..., n:], by_columns)):
            yield {
                "x": x[: rows // repeats, n:],
                "weight": matrices,
                "expert_ids": ids[: rows // repeats * repeats].view(-1, repeats),
                "output": output[: rows // repeats * repeats, m:],
                "bias": more if repeats == 3 or dtype == torch.float16 else None,
            }


def _samples(
    dtype: torch.dtype, tokens: int, experts: int, k: int, groups: int, topk_group: int, device: torch.device
) -> Iterator[Sample]:
    both = torch.randn(tokens, 2 * experts, device=device).to(dtype)
    ids = torch.int64 if dtype == torch.float16 else torch.int32
    bias = torch.randn(experts, device=device) / 4
    for renormalize, gates in enumerate((both[:, :experts].contiguous(), both[:, experts:])):
        yield {
            "topk_weights": torch.empty(tokens, k, device=device),
            "topk_ids": torch.empty(tokens, k, dtype=ids, device=device),
            "gating_output": gates,
            "renormalize": bool(renormalize),
            "num_expert_group": groups,
            "topk_group": topk_group,
        }
        yield {
            "topk_weights": torch.empty(k, tokens, dtype=dtype, device=device).t(),
            "topk_ids": torch.empty(tokens, k + 1, dtype=ids, device=device)[:, 1:],
            "gating_output": gates,
            "renormalize": not renormalize,
            "correction_bias": bias,
            "num_expert_group": groups,
            "topk_group": topk_group,
            "routed_scaling_factor": 2.5,
        }
