"""What a type checker says about calls of ops."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest

SNIPPET = """\
import torch
import sgljit_norm
import sgljit_quant.ops
from sgljit_hicache import can_use_hicache_jit_kernel
from sgljit_norm import fused_inplace_qknorm, rmsnorm
from sgljit_norm import rmsnrom  # wrong: name
from sgljit_wait_value import Event

x = torch.ones(2, 2)
rmsnorm(x, x)
rmsnorm(x, x, out=None, eps=1e-5)
sgljit_norm.layernorm(x, x, x)
sgljit_quant.ops.per_token_quant_fp8(x, output_q=x, output_s=x)
fused_inplace_qknorm(x, x, x, x, head_dim=2)
fast: bool = can_use_hicache_jit_kernel(element_size=16)
Event("cpu").record(1)
sgljit_norm.rmsnrom(x, x)  # wrong: name
rmsnorm(x)  # wrong: missing
rmsnorm(x, 2)  # wrong: type
rmsnorm(x, x, nonsense=7)  # wrong: keyword
fused_inplace_qknorm(x, x, x, x, 1e-6, 2)  # wrong: keyword-only
slow: str = can_use_hicache_jit_kernel(element_size=16)  # wrong: result
"""

WRONG = {number for number, line in enumerate(SNIPPET.splitlines(), 1) if "# wrong" in line}


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_wrong_calls_are_refused_and_right_ones_are_not(checker, tmp_path):
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    file = tmp_path / "calls.py"
    file.write_text(SNIPPET)
    options = ["--strict", f"--cache-dir={tmp_path}"] if checker == "mypy" else ["--pythonpath", sys.executable]
    done = subprocess.run(
        [sys.executable, "-m", checker, *options, str(file)], capture_output=True, text=True, cwd=tmp_path
    )
    reported = {int(number) for number in re.findall(r"calls\.py:(\d+)(?::\d+)*:? (?:- )?error", done.stdout)}
    assert reported == WRONG, done.stdout
