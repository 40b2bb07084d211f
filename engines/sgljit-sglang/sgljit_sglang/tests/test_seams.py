"""The adapter's hooks and backends in a process without SGLang: what they ask, count and leave to SGLang."""

from __future__ import annotations

import importlib
import importlib.util

import pytest
import torch

import sgljit_sglang
from sgljit_engines import report

pytestmark = pytest.mark.skipif(importlib.util.find_spec("sglang") is not None, reason="SGLang itself is there")


def part(name: str):
    """A module of the adapter, as it is now."""
    return importlib.import_module(f"sgljit_sglang.{name}")


def heads(tokens: int, count: int = 2) -> torch.Tensor:
    return torch.ones(tokens, count, 64)


def rotation(tokens: int = 5) -> tuple[torch.Tensor, ...]:
    return heads(tokens, 4), heads(tokens), torch.ones(32, 64), torch.arange(tokens)


def store(tokens: int = 5) -> tuple[torch.Tensor, ...]:
    q, k, angles, positions = rotation(tokens)
    return q, k, heads(tokens), torch.zeros(8, 128), torch.zeros(8, 128), angles, positions, positions


def quantised(tokens: int = 5) -> tuple[object, ...]:
    x = torch.ones(tokens, 256, dtype=torch.bfloat16)
    return x, torch.empty_like(x, dtype=torch.float8_e4m3fn), torch.empty(tokens, 2), 128


def call_norms(_seams) -> None:
    assert part("norms")._works("rmsnorm", torch.ones(5, 64))
    assert part("norms")._works("gemma_fused_add_rmsnorm", torch.ones(5, 64))


CALLS = {
    "norms": call_norms,
    "qknorm": lambda seams: seams.call("fused_inplace_qknorm", heads(5), heads(5), torch.ones(64), torch.ones(64)),
    "rotations": lambda seams: (
        seams.call("apply_rope_inplace", *rotation(), is_neox=True),
        seams.call("apply_rope_inplace_with_kvcache", *store(), is_neox=False),
    ),
    "experts": lambda seams: (
        seams.call("moe_fused_gate", torch.ones(5, 16), torch.ones(16), 2),
        seams.call("moe_fused_gate", torch.ones(5, 16), None, 2, "softmax"),
    ),
    "caches": lambda seams: (
        seams.call("store_cache", *torch.ones(2, 5, 8), *torch.zeros(2, 9, 8), torch.arange(5), size_limit=9),
        seams.call("set_mla_kv_buffer", torch.zeros(9, 1, 24), torch.arange(5), torch.ones(5, 16), torch.ones(5, 8)),
    ),
    "quantization": lambda seams: (
        seams.call("per_token_group_quant", *quantised()),
        seams.call("per_token_group_quant", quantised()[0], fuse_silu_and_mul=True),
        seams.call("per_token_group_quant", quantised()[0], scale_ue8m0=True, column_major_scales=True),
        seams.call("per_token_group_quant", quantised()[0][None], masked_m=torch.ones(1, dtype=torch.int32)),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_op_is_tried_with_few_rows_and_many(seams, name, monkeypatch):
    tried = []

    def try_rows(call, size, device):
        assert device == "cpu"
        for rows in (1, 3, 64):
            call(rows)
            tried.append((rows, size))

    monkeypatch.setattr(part(name), "try_rows", try_rows)
    CALLS[name](seams)
    assert not seams.theirs
    assert {rows for rows, _ in tried} == {1, 3, 64}
    before = len(tried)
    CALLS[name](seams)
    assert len(tried) == before, "once for each kind"


OTHER_CALLS = {
    "silu_and_mul": lambda seams: seams.call("silu_and_mul", torch.ones(2, 24)),
    "apply_rope_inplace": lambda seams: seams.call("apply_rope_inplace", *rotation(), is_neox=True, rope_dim=32),
    "apply_rope_inplace_with_kvcache": lambda seams: seams.call(
        "apply_rope_inplace_with_kvcache", *store(), is_neox=True, rope_dim=32
    ),
    "topk_sigmoid": lambda seams: seams.call(
        "moe_fused_gate", torch.ones(5, 16), torch.ones(16), 2, num_fused_shared_experts=1
    ),
    "per_token_group_quant_fp8": lambda seams: seams.call("per_token_group_quant", *quantised(), scale_ue8m0=True),
    "silu_and_mul_quant": lambda seams: seams.call(
        "per_token_group_quant", quantised()[0].float(), fuse_silu_and_mul=True, silu_and_mul_mode="dense"
    ),
    "silu_and_mul_masked_quant": lambda seams: seams.call(
        "per_token_group_quant", quantised()[0], fuse_silu_and_mul=True, masked_m=torch.ones(5, dtype=torch.int32)
    ),
    "store_cache": lambda seams: seams.call("store_cache", *torch.ones(4, 5, 8), torch.arange(5).short()),
    "set_mla_kv_buffer": lambda seams: seams.call(
        "set_mla_kv_buffer", torch.zeros(9, 9), torch.arange(5), torch.ones(5, 4), torch.ones(5, 4)
    ),
    "fused_inplace_qknorm": lambda seams: seams.call(
        "fused_inplace_qknorm", heads(5), heads(5), torch.ones(64).half(), torch.ones(64)
    ),
}


@pytest.mark.parametrize("op", OTHER_CALLS)
def test_the_report_has_calls_that_an_op_is_not_asked_for(seams, op):
    for number in (1, 2):
        OTHER_CALLS[op](seams)
        assert len(seams.theirs) == number
        (use,) = report()
        assert (use.op, use.kind, use.calls, use.own_calls) == (op, "other calls", 0, number)
        assert use.why == "the op does not take their options or tensors"


def test_the_report_has_norms_that_an_op_is_not_asked_for(seams):
    layers = importlib.import_module("sglang.srt.layers.layernorm")
    norm = layers.RMSNorm()
    norm.weight, norm.variance_epsilon, norm.variance_size_override = torch.ones(64), 1e-6, 32
    assert norm.forward_plugin(torch.ones(5, 64)) == "SGLang's"
    (use,) = report()
    assert (use.op, use.kind, use.own_calls) == ("rmsnorm", "other calls", 1)
    norm.variance_size_override = None
    torch.testing.assert_close(norm.forward_plugin(torch.full((5, 64), 3.0)), torch.ones(5, 64))
    assert [(use.calls, use.own_calls) for use in report()] == [(0, 1), (1, 0)]


def test_a_lost_op_is_counted_as_sglangs_and_no_plugin(seams):
    x = torch.ones(2, 32)
    assert seams.call("silu_and_mul", x) is not None
    assert not seams.theirs
    sgljit_sglang.ADAPTER.lose("silu_and_mul", OSError("its results differ"))
    assert seams.call("silu_and_mul", x) == "SGLang's"
    (use,) = report()
    assert (use.calls, use.own_calls, use.why) == (1, 1, "OSError: its results differ")
    norm = importlib.import_module("sglang.srt.layers.layernorm").RMSNorm()
    norm.weight, norm.variance_epsilon = torch.ones(64), 1e-6
    plugin = importlib.import_module("sglang.kernels.spec").KernelBackend.PLUGIN
    assert norm.backend_eligible(plugin, torch.ones(5, 64))
    sgljit_sglang.ADAPTER.lose("rmsnorm", OSError("its results differ"))
    assert not norm.backend_eligible(plugin, torch.ones(5, 64)), "SGLang's trace would say plugin"


def test_a_share_that_cannot_be_read_is_an_error_that_sglang_does_not_swallow(seams, monkeypatch):
    monkeypatch.setattr("sgljit_engines.adapter._installed", lambda _: "0.5.23")
    monkeypatch.setenv("SGLJIT_SHADOW", "often")
    part("backend")._hooked.clear()
    with pytest.raises(SystemExit, match=r"^sgljit-sglang: SGLJIT_SHADOW must be .* got 'often'$"):
        sgljit_sglang.register()
