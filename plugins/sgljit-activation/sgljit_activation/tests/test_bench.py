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
    page = tmp_path / "activation.md"
    script = (
        sys.executable,
        "-m",
        "sgljit_activation.bench.bench_activation",
        "--device",
        device,
        "--output",
        str(page),
    )
    result = subprocess.run(script, env={**os.environ, "CI": "1"}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    text = page.read_text()
    assert result.stdout.startswith(text)
    assert (
        f"Command: `python -m sgljit_activation.bench.bench_activation --device {device} --output activation.md`"
        in text
    )
    rows = re.findall(r"^\| \d+ \| (?:6144|2880) \|(.+)\|$", text, re.MULTILINE)
    assert len(rows) == 5
    for row in rows:
        assert len(re.findall(r"\d+\.\d\d \(\d+ %\)", row)) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_short_range_of_the_quantised(device: str, tmp_path: Path):
    page = tmp_path / "activation_quant.md"
    module, kinds = "sgljit_activation.bench.bench_activation_quant", ["masked", "group_packed", "clamped_token"]
    script = (sys.executable, "-m", module, "--device", device, "--ops", ",".join(kinds), "--output", str(page))
    result = subprocess.run(script, env={**os.environ, "CI": "1"}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    text = page.read_text()
    assert result.stdout.startswith(text)
    assert re.findall(r"^## \w+_quant, (.+)$", text, re.MULTILINE) == ["masked", "group_packed", "token"]
    rows = re.findall(r"^\| 128 \| 1024 \|(.+)\|$", text, re.MULTILINE)
    assert len(rows) == len(kinds)
    for row in rows:
        assert len(re.findall(r"\d+\.\d\d \(\d+ %\)", row)) >= 2
