"""The benchmark runs, and its page has a row for each phase."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="pip install 'sgljit-compile[test]'")


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_tiny_model(device: str, tmp_path: Path):
    page = tmp_path / "page.md"
    options = ["--tiny", "--device", device, "--models", "qwen3", "--modes", "default", "--prompt", "8"]
    options += ["--repeats", "1", "--rounds", "1", "--lines", "all chains", "--output", str(page)]
    command = (sys.executable, "-m", "sgljit_compile.bench.compiled", *options)
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for phase in ("decode", "prefill"):
        row = re.search(rf"^\| qwen3 64 \| {phase} \| 1 \| default \|(.+)\|$", page.read_text(), re.MULTILINE)
        assert row
        assert len(re.findall(r"\d+\.\d+ \(\d+\.\d\d x(?:; kernels \d+, \d+ us; small \d+, \d+ us)?\)", row[1])) == 2


def test_small_kernels_are_all_but_products_and_attention():
    from sgljit_compile.bench import compiled

    products = [
        "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float>",
        "void device::row_program<moe::Matvec, 3, 128u, 0u, true, 546ul>",
        "void moe::sum_columns<8u, __nv_bfloat16, long>(moe::Columns)",
    ]
    attention = [
        "cudnn_generated_fort_native_sdpa_sm80_flash_fprop",
        "void cudnn::fusion::lean_reduction_kernel<false>",
    ]
    small = [
        "triton_poi_fused__scaled_dot_product_cudnn_attention__unsafe_view_add_arange_clone",
        "void device::row_program<norms::FusedAddRMSNorm<false>, 3, 128u>",
        "void at::native::vectorized_elementwise_kernel<2, at::native::FillFunctor<long>>",
    ]
    assert [name for name in products + attention + small if not compiled.LARGE.match(name)] == small
