"""The benchmark runs, and its page has a table for each op."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sgljit_rope.plugin import FAMILY

OTHERS = ("sgljit_kvcache", "sgljit_norm")  # with the ops that ours stand for
# What a folder of --peers offers, by PyTorch: each function has the arguments that the kernel of SGLang has.
PEERS = """
import torch
from sgljit_rope import reference

class Rope:
    def __init__(self, is_neox):
        self.is_neox = is_neox

    def run(self, q, k, cos_sin, positions):
        reference.apply_rope_inplace(q, k, cos_sin, positions, is_neox=self.is_neox)

    def fused(self, q, k, v, k_cache, v_cache, cos_sin, positions, slots):
        self.run(q, k, cos_sin, positions)
        k_cache[slots], v_cache[slots] = k.flatten(1), v.flatten(1)

class Peers:
    def __init__(self, folder):
        pass

    def rope(self, size, is_neox):
        return Rope(is_neox)

    def set_mla_kv_buffer(self, nope_bytes, rope_bytes):
        def store(kv_buffer, slots, k_nope, k_rope):
            assert (2 * k_nope.shape[1], 2 * k_rope.shape[1]) == (nope_bytes, rope_bytes)
            kv_buffer[slots] = torch.cat((k_nope, k_rope), -1)
        return store

    def qknorm(self, size):
        def norm(q, k, q_weight, k_weight, eps):
            for x, weight in ((q, q_weight), (k, k_weight)):
                x.copy_(torch.nn.functional.rms_norm(x.float(), weight.shape, weight.float(), eps))
        return norm

    def qknorm_rope(self, size, is_neox):
        def norm_and_rope(qkv, q_weight, k_weight, positions, heads, eps, theta):
            assert positions.dtype == torch.int32 and qkv.is_contiguous() and qkv.shape[1] == sum(heads) * size
            q, k, _ = qkv.unflatten(1, (-1, size)).split(heads, dim=1)
            angles = positions[:, None] * theta ** (-torch.arange(0, size, 2).double() / size)
            table = torch.cat((angles.cos(), angles.sin()), -1)
            reference.fused_qk_norm_rope(q, k, q_weight, k_weight, table, torch.arange(len(q)), eps=eps)
        return norm_and_rope

    def rope_scale_store(self):
        def store(qkv, q_out, k_cache, v_cache, cos_sin, positions, slots):
            assert cos_sin.dtype == torch.bfloat16 and (slots > 0).all()
            size, kv_heads = k_cache.shape[2], k_cache.shape[1]
            q, k, v = (x.clone() for x in qkv.unflatten(1, (-1, size)).split((32, kv_heads, kv_heads), dim=1))
            reference.apply_rope_inplace(q, k, cos_sin, positions)
            q_out.copy_(q.flatten(1))
            k_cache[slots], v_cache[slots] = k, v
        return store

    def store(self, row_bytes):
        def store(k, v, k_cache, v_cache, slots, size_limit, skipped):
            assert 2 * k.shape[1] == row_bytes and size_limit == len(k_cache) and skipped == -1
            k_cache[slots], v_cache[slots] = k, v
        return store
"""


def bench(page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as users run it: what torch warns of at its imports is no error there."""
    script = (sys.executable, "-m", "sgljit_rope.bench", "--output", str(page), *options)
    return subprocess.run(script, env={**os.environ, "CI": "1"}, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_short_range(device: str, tmp_path: Path):
    for other in OTHERS:
        pytest.importorskip(other)
    page = tmp_path / "page.md"
    result = bench(page, "--device", device)
    assert result.returncode == 0, result.stderr
    for op in FAMILY.declared():
        assert page.read_text().count(f"## {op}\n") == 1
    table = page.read_text().partition("## fused / sum of its parts\n\n")[2].splitlines()
    assert table[0] == "| tokens | size | rope + store | norms + rope | norms + rope + store |"
    assert table.index("") == 3, "it has a line of figures"
    assert "\n| tokens | size | rope + store of latent rows |\n" in page.read_text()


@pytest.mark.slow
def test_each_kernel_of_a_peer_gets_the_arguments_that_it_takes(tmp_path: Path):
    """The bench checks what each has computed."""
    for other in OTHERS:
        pytest.importorskip(other)
    (tmp_path / "peers.py").write_text(PEERS)
    latent = "apply_rope_inplace_with_mla_kvcache"
    ops = ("apply_rope_inplace_with_kvcache", "fused_qk_norm_rope", "fused_qk_norm_rope_with_kvcache", latent)
    options = ("--device", "cpu", "--peers", str(tmp_path), "--ops", ",".join(ops), "--sizes", "128")
    result = bench(tmp_path / "page.md", *options)
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "page.md").read_text()
    assert (
        page.count("| tokens | size | sgljit | SGLang | SGLang, fused | PyTorch | sgljit / best of the others |") == 3
    )
    assert page.count("| tokens | size | sgljit | SGLang | PyTorch | sgljit / best of the others |") == 1
    assert "| nan |" not in page
    assert "## apply_rope_inplace\n" not in page


@pytest.mark.slow
def test_what_it_cannot_measure_is_refused(tmp_path: Path):
    for option, value, known in (("ops", "rope,fused_qk_norm_rope", "apply_rope_inplace, "), ("sizes", "100", "128")):
        result = bench(tmp_path / "page.md", "--device", "cpu", f"--{option}", value)
        assert result.returncode == 2
        assert f"error: --{option}: expected some of {known}" in result.stderr
        assert result.stderr.endswith(f", got {value.partition(',')[0]}\n" if option == "ops" else "got 100\n")
