"""The benchmark runs, and its page has a table for each op."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sgljit_sampling.plugin import FAMILY


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_short_range(device: str, tmp_path: Path):
    """In a process of its own, as users run it: what torch warns of at its imports is no error there."""
    page = tmp_path / "page.md"
    script = (sys.executable, "-m", "sgljit_sampling.bench", "--device", device, "--output", str(page))
    result = subprocess.run(script, env={**os.environ, "CI": "1"}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for op in FAMILY.declared():
        assert page.read_text().count(f"## {op}\n") == 1
