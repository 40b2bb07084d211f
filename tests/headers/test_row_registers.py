"""The registers of row programs: what the host part reckons with, and what the compiler takes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sgljit_engines.shapes import read_config
from sgljit_norm.plugin import FAMILY
from sgljit_rope.plugin import FAMILY as ROPE
from sgljit_tools.recording.recorder import record

from .toolbox import compile_cuda

OPS = frozenset({"rmsnorm", "fused_add_rmsnorm", "layernorm"})
CSRC = FAMILY.csrc


@pytest.fixture(scope="module")
def kernels() -> list[str]:
    """The kernels that these ops ask for with bfloat16, over all numbers of tokens, for 4096 elements and more."""
    recording = record(["norm"], cuda_arch="9.0a", on_cpu=False, ops=OPS, keep=False)
    labels = [one.spec.label.partition(".")[2] for one in recording.wanted]
    found = [label for label in labels if label.startswith("device.row_program<")]
    names = [name.replace("device.", "device::", 1).replace(" for sm_90a", "") for name in found]
    columns = {name: int(re.findall(r"(\d+)>$", name)[0]) & (1 << 20) - 1 for name in names}
    types = {name: int(re.findall(r"(?:true|false), (\d+)", name)[0]) for name in names}
    return [name for name in names if columns[name] >= 4096 and types[name] in (0x222, 0x2222)]


def spilled_bytes(header: Path, kernels: list[str], directory: Path) -> list[int]:
    """What a thread of each kernel stores for lack of registers. A kernel that asks for more blocks than a
    multiprocessor holds is a warning, which is an error here."""
    lines = [f'#include "{header}"']
    for kernel in kernels:
        functor, operands, sizes = re.findall(r"row_program\w*<(.+?), (\d+), \d+, \d+, (.+)>$", kernel)[0]
        segments = sizes.count(",") - 2  # behind three other arguments, a number for each
        params = [f"const __grid_constant__ sgl::RowProgramParams<{operands}, {segments}>"]
        if "row_program<" in kernel:
            params.insert(0, f"const __grid_constant__ {functor}")
        lines.append(f"template __global__ void {kernel}({', '.join(params)});")
    built = compile_cuda("\n".join(lines), directory, "-Xptxas", "-v", arch="90a")
    assert built.returncode == 0, built.stderr
    return [int(number) for number in re.findall(r"(\d+) bytes spill stores", built.stderr)]


@pytest.mark.slow  # nvcc compiles tens of kernels
def test_rows_in_registers_spill_few_of_them(kernels: list[str], tmp_path: Path):
    spilled = spilled_bytes(CSRC / "norm.h", kernels, tmp_path)
    assert len(spilled) == len(kernels) > 20
    assert max(spilled) <= 64, "sixteen registers"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("head_dim", "rotated"), [(128, 1.0), (256, 0.25)])
def test_two_heads_of_a_thread_spill_few_registers(dtype: str, head_dim: int, rotated: float, tmp_path: Path):
    config = {
        "model_type": "qwen3",
        "dtype": dtype,
        "hidden_size": 4096,
        "num_hidden_layers": 2,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": head_dim,
        "partial_rotary_factor": rotated,
        "intermediate_size": 12288,
        "hidden_act": "silu",
        "vocab_size": 151936,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = read_config(tmp_path)
    recording = record(["rope"], cuda_arch="9.0a", on_cpu=False, model=model, tokens=(1, 64, 16384), keep=False)
    labels = [one.spec.label.partition(".")[2] for one in recording.wanted]
    names = [label.replace("device.", "device::", 1).replace(" for sm_90a", "") for label in labels]
    shapes = {name: re.findall(r"(?:true|false), \w+, \w+, (\d+)[^(]*>$", name) for name in names}
    double = [name for name, first in shapes.items() if first and int(first[0]) >> 62 & 1]
    spilled = spilled_bytes(ROPE.csrc / "rope.h", double, tmp_path)
    assert len(spilled) == len(double) > 0
    assert max(spilled) <= 8, "two registers"
