"""The benchmark runs, its page has a table for each op, and it gives SGLang's stores their arguments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sgljit_kvcache.bench import __main__ as bench
from sgljit_kvcache.plugin import FAMILY


class Peers:
    """SGLang's stores as the folder of peers offers them, of rows [tokens, row] alone."""

    def store(self, row_bytes):
        def run(k, v, k_cache, v_cache, slots, limit, skipped):
            assert {x.shape[1] * x.element_size() for x in (k, v, k_cache, v_cache)} == {row_bytes}
            assert (limit, skipped) == (len(k_cache), -1)
            k_cache[slots], v_cache[slots] = k, v

        return run

    def set_mla_kv_buffer(self, nope_bytes, rope_bytes):
        def run(kv_buffer, slots, k_nope, k_rope):
            assert k_nope.shape == (len(slots), nope_bytes // 2)
            assert k_rope.shape == (len(slots), rope_bytes // 2)
            kv_buffer[slots, : nope_bytes // 2] = k_nope
            kv_buffer[slots, nope_bytes // 2 :] = k_rope

        return run


@pytest.mark.parametrize("op", bench.OF_SGLANG)
@pytest.mark.parametrize("size", [64, 80, 96, 192])
def test_sglangs_stores_compute_the_ops(op, size):
    bench.check(op, bench.sglang(Peers(), op, size), bench.make(op, 9, size, "cpu"))


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_short_range(device: str, tmp_path: Path):
    """In a process of its own, as users run it: what torch warns of at its imports is no error there."""
    page = tmp_path / "page.md"
    script = (sys.executable, "-m", "sgljit_kvcache.bench", "--device", device, "--output", str(page))
    result = subprocess.run(script, env={**os.environ, "CI": "1"}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for op in FAMILY.declared():
        assert page.read_text().count(f"## {op}\n") == 1
