"""The registers of row programs: what the host part reckons with, and what the compiler takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sgljit_norm.plugin import FAMILY
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


@pytest.mark.slow  # nvcc compiles tens of kernels
def test_rows_in_registers_spill_few_of_them(kernels: list[str], tmp_path: Path):
    """And a multiprocessor holds the blocks that a kernel asks for: else the compiler warns, which is an error here."""
    lines = [f'#include "{CSRC}/norm.h"']
    for kernel in kernels:
        functor, operands = re.findall(r"row_program<([\w:]+(?:<\w+>)?), (\d+),", kernel)[0]
        params = f"const __grid_constant__ sgl::RowProgramParams<{operands}, 1>"
        lines.append(f"template __global__ void {kernel}(const __grid_constant__ {functor}, {params});")
    built = compile_cuda("\n".join(lines), tmp_path, "-Xptxas", "-v", arch="90a")
    assert built.returncode == 0, built.stderr
    spilled = [int(number) for number in re.findall(r"(\d+) bytes spill stores", built.stderr)]
    assert len(spilled) == len(kernels) > 20
    assert max(spilled) <= 64, "sixteen registers"
