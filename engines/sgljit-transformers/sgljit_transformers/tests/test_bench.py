"""The benchmark runs, and its page has a row for each phase and each layer."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from . import tiny  # noqa: F401 - skips where transformers is missing


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_tiny_model(device: str, tmp_path: Path):
    page = tmp_path / "page.md"
    options = (
        "--tiny",
        "--device",
        device,
        "--prompt",
        "8",
        "--tokens",
        "2",
        "--repeats",
        "1",
        "--rounds",
        "1",
        "--output",
        str(page),
    )
    command = (sys.executable, "-m", "sgljit_transformers.bench.bench_eager", *options)
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    text = page.read_text()
    assert result.stdout.startswith(text)
    for phase in ("prefill", "decode"):
        row = re.search(rf"^\| 2 x 64 \| {phase} \|(.+)\|$", text, re.MULTILINE)
        assert row, text
        assert len(re.findall(r"\d+\.\d\d \(\d+\.\d\d x\)", row[1])) == 7
    assert (
        len(re.findall(r"^\| 2 x 64 \| (?:norm of (?:hidden|q)|MLP), (?:decode|prefill) \|", text, re.MULTILINE)) == 6
    )
