"""The benchmark runs, and its page has a row for each shape and a figure for each provider."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_short_range(device: str, tmp_path: Path):
    """In a process of its own, as users run it: what torch warns of at its imports is no error there."""
    page = tmp_path / "quant.md"
    script = (sys.executable, "-m", "sgljit_quant.bench.bench_quant", "--device", device, "--output", str(page))
    result = subprocess.run(script, env={**os.environ, "CI": "1"}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    text = page.read_text()
    assert result.stdout.startswith(text)
    assert f"Command: `python -m sgljit_quant.bench.bench_quant --device {device} --output quant.md`" in text
    rows = re.findall(r"^\| 128 \| 1024 \|(.+)\|$", text, re.MULTILINE)
    assert len(rows) == 8
    for row in rows:
        assert len(re.findall(r"\d+\.\d\d \(\d+ %\)", row)) >= 2
