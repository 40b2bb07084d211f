"""bench/cpu.py measures every row operation on the CPU, and writes a page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "bench" / "cpu.py"


@pytest.mark.slow
def test_the_page_has_each_op_on_one_core_and_on_all(tmp_path: Path):
    page = tmp_path / "cpu.md"
    command = [sys.executable, str(SCRIPT), "--dtypes", "bfloat16", "--output", str(page)]
    subprocess.run(command, env={**os.environ, "CI": "1"}, check=True, capture_output=True, timeout=300)
    lines = [line.split(" | ") for line in page.read_text().splitlines() if " | bfloat16 | " in line]
    assert len(lines) == 2 * 14, "fourteen cases, on one core and on all"
    for op, _, ours, copy in lines:
        assert float(ours.split()[0]) > 0, op
        assert float(copy.removesuffix(" |")) > 0, op
