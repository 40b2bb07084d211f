"""Which ops does the backend put into graphs, and beside which versions of torch?"""

from __future__ import annotations

from collections.abc import Mapping

from sgljit_engines import Adapter

__all__ = ["ADAPTER", "FAMILIES"]

ADAPTER = Adapter(
    distribution="sgljit-compile",
    engine={"torch": ">=2.11,<2.15"},  # pyproject.toml has the version, too
    ops={
        "norm": {
            "fused_add_rmsnorm": "add + norm",
            "gemma_fused_add_rmsnorm": "add + norm with 1 + weight",
            "fused_rmsnorm_add_rmsnorm": "norm + add + norm",
            "gemma_fused_rmsnorm_add_rmsnorm": "norm + add + norm with 1 + weight",
        },
        "rope": {
            "fused_qk_norm_rope_with_kvcache": "qk-norm + rope + store",
            "fused_qk_norm_rope": "qk-norm + rope",
            "apply_rope_inplace_with_kvcache": "rope + store",
            "apply_rope_inplace": "rope",
        },
        "kvcache": {"append_to_window": "sliding window"},
        "moe": {
            "topk_softmax": "routing",
            "sort_by_expert": "order of experts",
            "expert_matvec": "products of few rows with experts",
        },
    },
)

FAMILIES: Mapping[str, str] = {op: family for family, ops in ADAPTER.ops.items() for op in ops}
