"""Which engine is this adapter for, which versions of it were tested, and which ops does it put into models?"""

from __future__ import annotations

from sgljit_engines import Adapter

__all__ = ["ADAPTER"]

# pyproject.toml has the version, too.
ADAPTER = Adapter(
    distribution="sgljit-transformers",
    engine={"transformers": ">=5.20,<5.25"},
    ops={
        "norm": {"rmsnorm": "RMSNorm", "gemma_rmsnorm": "RMSNorm with 1 + weight"},
        "activation": {
            "silu_and_mul": "the activation of an MLP with silu",
            "gelu_and_mul": "the activation of an MLP with gelu",
            "gelu_tanh_and_mul": "the activation of an MLP with gelu by tanh",
            "clamped_swiglu": "the activation of gpt-oss's experts",
        },
        "moe": {
            "expert_matvec": "the experts of tokens",
            "moe_sum": "the sum of what a token's experts give",
            "sort_by_expert": "the order of many tokens by expert",
            "topk_softmax": "the choice of experts by a softmax",
        },
        "rope": {"apply_rotary_pos_emb": "the rotation of queries and keys"},
    },
    exact_ops=frozenset({"silu_and_mul"}),
)
