"""The benchmark runs, and its page has a table for each op and a figure for each provider."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sgljit_norm.bench import tune


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


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_grid_has_a_heat_map_for_each_op(device: str, tmp_path: Path):
    page = tmp_path / "norm_grid.md"
    script = (sys.executable, "-m", "sgljit_norm.bench.bench_norm", "--grid", "--device", device)
    result = subprocess.run(
        [*script, "--ops", "rmsnorm,layernorm", "--output", str(page)],
        env={**os.environ, "CI": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    for op in ("rmsnorm", "layernorm"):
        assert f"(norm_grid_{op}_bfloat16.svg)" in page.read_text()
        assert "sgljit / best of the others" in (tmp_path / f"norm_grid_{op}_bfloat16.svg").read_text()
    assert "Llama 3.1 8B" in page.read_text()


@pytest.mark.gpu
def test_the_tuner_finds_a_layout_for_each_shape():
    shapes = [1, 8, 32, 128, 256, 512, 1024, 8192]
    rows = list(tune.tune("rmsnorm", [512, 4096], shapes, torch.bfloat16))
    assert len(rows) == 16
    for row in rows:
        assert row["chosen"] in row["layouts"]
        assert row["best us"] == min(row["layouts"].values())
    lines = re.findall(r"\{ *(\d+), \{(.*)\}\}", tune.table(rows))
    assert [vectors for vectors, _ in lines] == ["32", "64", "512", "4096"]
    assert all(len(entries.split(",")) == 6 for _, entries in lines)
