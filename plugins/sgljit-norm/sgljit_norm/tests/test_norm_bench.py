"""The benchmark runs, and its page has a table for each op and a figure for each provider."""

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
    page = tmp_path / "norm.md"
    script = (sys.executable, "-m", "sgljit_norm.bench.bench_norm", "--device", device, "--output", str(page))
    result = subprocess.run(script, env={**os.environ, "CI": "1"}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    text = page.read_text()
    assert result.stdout.startswith(text)
    assert f"Command: `python -m sgljit_norm.bench.bench_norm --device {device} --output norm.md`" in text
    rows = re.findall(r"^\| \d+ \| \d+ \|(.+)\|$", text, re.MULTILINE)
    assert len(rows) == len(re.findall(r"^## .*, bfloat16$", text, re.MULTILINE)) == 5
    for row in rows:
        assert len(re.findall(r"\d+\.\d\d \(\d+ %\)", row)) >= 2
