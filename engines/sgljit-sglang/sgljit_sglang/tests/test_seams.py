"""The adapter's hooks and backends in a process without SGLang: what they ask, count and leave to SGLang."""

from __future__ import annotations

import importlib
import importlib.util

import pytest
import torch

import sgljit_sglang

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
    "quantization": lambda seams: seams.call("per_token_group_quant", *quantised()),
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


def test_a_share_that_cannot_be_read_is_an_error_that_sglang_does_not_swallow(seams, monkeypatch):
    monkeypatch.setattr("sgljit_engines.adapter._installed", lambda _: "0.5.23")
    monkeypatch.setenv("SGLJIT_SHADOW", "often")
    part("backend")._hooked.clear()
    with pytest.raises(SystemExit, match=r"^sgljit-sglang: SGLJIT_SHADOW must be .* got 'often'$"):
        sgljit_sglang.register()
