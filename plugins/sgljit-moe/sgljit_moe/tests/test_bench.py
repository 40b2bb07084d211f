"""The benchmark runs, its page has a table for each op, and it compares with the fastest of SGLang's kernels."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sgljit_moe.bench import __main__ as bench
from sgljit_moe.plugin import FAMILY
from sgljit_tools.benchmark import Figure


class Peers:
    """SGLang's kernels as the folder of peers offers them, with what is written that they promise, and no more."""

    def __init__(self):
        self.called = []

    def topk(self, score):
        def run(weights, ids, gates, bias, scale):
            self.called.append(f"topk_{score}")
            scores = gates.sigmoid() if score == "sigmoid" else gates.softmax(-1)
            ids.copy_((scores if bias is None else scores + bias).topk(ids.shape[1]).indices)
            found = scores.gather(1, ids.long())
            weights.copy_(scale * found / found.sum(1, keepdim=True))

        return run

    def kimi_k2_gate(self):
        run = self.topk("sigmoid")
        return lambda *arguments: (self.called.append("kimi_k2_gate"), run(*arguments))

    def moe_align(self):
        def run(ids, experts, block_size, sorted_ids, block_experts, padded):
            self.called.append("moe_align")
            sorted_ids.fill_(ids.numel())
            block = 0
            for expert in range(experts):
                pairs = (ids.flatten() == expert).nonzero()[:, 0].flip(0)  # in any order
                for i in range(0, len(pairs), block_size):
                    part = pairs[i : i + block_size]
                    sorted_ids[block * block_size : block * block_size + len(part)] = part
                    block_experts[block] = expert
                    block += 1
            padded.fill_(block * block_size)

        return run

    def moe_align_single(self):
        run = self.moe_align()

        def single(ids, block_size, *written):
            assert len(ids) == 1
            self.called.append("moe_align_single")
            run(ids, int(ids.max()) + 1, block_size, *written)

        return single

    def moe_permute_prepare(self):
        def run(sorted_ids, order, starts, places):
            self.called.append("moe_permute_prepare")
            starts.copy_(torch.searchsorted(sorted_ids, torch.arange(len(starts), dtype=sorted_ids.dtype)))
            places[order] = torch.arange(len(order), dtype=torch.int32)

        return run


@pytest.fixture
def peers():
    return Peers()


def test_of_several_kernels_the_fastest_counts(monkeypatch):
    monkeypatch.setattr(bench, "measure", lambda kernel, _inputs, **_: Figure(kernel(), 0, 0))
    kernels = [lambda: 3.0, lambda: 2.0, lambda: 4.0]
    assert bench.fastest(kernels, tuple, 0, "SGLang").microseconds == 2
    assert math.isnan(bench.fastest([], tuple, 0, "SGLang"))


@pytest.mark.parametrize(
    ("op", "experts", "groups", "kernels"),
    [
        ("topk_softmax", 128, 1, {"topk_softmax"}),
        ("topk_softmax", 256, 1, {"topk_softmax"}),
        ("topk_sigmoid", 160, 1, {"topk_sigmoid"}),
        ("topk_sigmoid", 256, 1, {"topk_sigmoid", "kimi_k2_gate"}),
        ("topk_sigmoid", 384, 1, {"topk_sigmoid", "kimi_k2_gate"}),
        ("topk_sigmoid", 256, 8, set()),
    ],
)
def test_all_of_sglangs_gates_that_serve_a_row_take_part(peers, op, experts, groups, kernels):
    for kernel in bench.sglang(peers, op, experts, groups):
        bench.check(kernel, bench.plain(op, 1, 1), bench.make(op, 9, experts, 8, "cpu"))
    assert set(peers.called) == kernels


@pytest.mark.parametrize(("tokens", "kernels"), [(1, {"moe_align", "moe_align_single"}), (9, {"moe_align"})])
def test_one_token_has_a_kernel_of_its_own(peers, tokens, kernels):
    ids = torch.stack([torch.randperm(32)[:8] for _ in range(tokens)]).int()
    written = [torch.empty(size, dtype=torch.int32) for size in (8 * tokens * 16, 8 * tokens, 1)]
    for kernel in bench.sglang_align(peers, tokens):
        bench.check_order(kernel, (ids, 32, 16, *written), 16)
    assert set(peers.called) == kernels


def test_an_order_that_is_left_as_an_earlier_kernel_wrote_it_is_found(peers):
    ids = torch.arange(8, dtype=torch.int32)[None]
    written = [torch.empty(size, dtype=torch.int32) for size in (8 * 16, 8, 1)]
    bench.check_order(bench.plain_align, (ids, 32, 16, *written), 16)
    with pytest.raises(AssertionError):
        bench.check_order(lambda *_: None, (ids, 32, 16, *written), 16)


def test_sglang_sorts_by_pytorch_and_a_kernel(peers):
    ids = torch.stack([torch.randperm(32)[:8] for _ in range(9)]).int()
    wanted = [torch.empty(size, dtype=torch.int32) for size in (72, 72, 72, 32)]
    bench.plain_sort(ids, *wanted)
    found = bench.sglang_sort(peers)(ids, *map(torch.empty_like, wanted))
    assert all(torch.equal(got.int(), want) for got, want in zip(found, wanted, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_short_range(device: str, tmp_path: Path):
    """In a process of its own, as users run it: what torch warns of at its imports is no error there."""
    page = tmp_path / "page.md"
    script = (sys.executable, "-m", "sgljit_moe.bench", "--device", device, "--output", str(page))
    result = subprocess.run(script, env={**os.environ, "CI": "1"}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for op in FAMILY.declared():
        assert page.read_text().count(f"## {op}\n") == 1
