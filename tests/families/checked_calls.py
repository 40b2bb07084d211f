"""Calls with an index or a count out of range, on the device that is named: each is refused, and writes nothing.

A process of its own, since a process reads ``SGLJIT_CHECK_INDICES`` once.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest
import torch

from sgljit_core.errors import TensorMatchError

CASES = (  # of a family and an op: the argument that is out of range, and the one whose rows it names or counts
    ("rope", "apply_rope_inplace", "positions", "cos_sin_cache"),
    ("rope", "apply_rope_inplace_with_kvcache", "out_loc", "k_cache"),
    ("rope", "apply_rope_inplace_with_mla_kvcache", "positions", "cos_sin_cache"),
    ("rope", "apply_rope_inplace_with_mla_kvcache", "out_loc", "kv_buffer"),
    ("rope", "fused_qk_norm_rope_with_kvcache", "positions", "cos_sin_cache"),
    ("kvcache", "store_cache", "indices", "k_cache"),
    ("kvcache", "gather_cache", "indices", "k_cache"),
    ("kvcache", "set_mla_kv_buffer", "loc", "kv_buffer"),
    ("kvcache", "set_mla_kv_buffer_fp8", "loc", "kv_buffer"),
    ("moe", "expert_matvec", "expert_ids", "weight"),
    ("quant", "masked_group_quant_fp8", "counts", "input"),
    ("activation", "silu_and_mul_masked_quant", "counts", "input"),
    ("activation", "clamped_swiglu_masked_quant", "counts", "input"),
    ("prologues", "qwen3", "slots", "k_cache"),
    ("prologues", "deepseek_v3", "positions", "cos_sin"),
    ("prologues", "minimax_m2", "slots", "k_cache"),
)
TOO_LARGE = 1 << 30


def check(op: Any, sample: dict[str, Any], index: str, table: str) -> None:
    """A wrong element is refused with the cause, and nothing is written; then the right ones are taken."""
    right = sample[index].clone()
    sample[index].view(-1)[1] = TOO_LARGE
    before = {name: x.clone() for name, x in sample.items() if isinstance(x, torch.Tensor)}
    text = rf"match failed for {index}, (?s:.*) out of range: element 1 is {TOO_LARGE}, and {table} has \d+ "
    with pytest.raises(TensorMatchError, match=text):
        op.function(**sample)
    for name, x in before.items():
        assert torch.equal(*(one.contiguous().view(torch.uint8) for one in (sample[name], x))), name
    sample[index].copy_(right)
    op.function(**sample)


def main(device: str) -> None:
    """Name the cases that are as they should be, one a line."""
    torch.manual_seed(0)
    for family, name, index, table in CASES:
        op = importlib.import_module(f"sgljit_{family}.plugin").FAMILY.declared()[name]
        samples = [sample for sample in op.samples(torch.device(device)) if sample[index].numel() > 1]
        assert samples, name
        of_tokens = [sample for sample in samples if sample[index].ndim > 1]  # of expert_matvec: the last have a bias
        for sample in (*samples[:3], *of_tokens[:4]):  # of store_cache: in slots, and in blocks of both orders
            check(op, sample, index, table)
        sys.stdout.write(f"{family}.{name} {index}\n")


if __name__ == "__main__":
    main(sys.argv[1])
