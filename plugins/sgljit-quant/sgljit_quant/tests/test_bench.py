"""The benchmark runs, and its page has a row for each shape and a figure for each provider."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from sgljit_quant.bench import bench_quant


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_short_range(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("CI", "1")
    page = tmp_path / "quant.md"
    monkeypatch.setattr(sys, "argv", ["bench_quant", "--device", device, "--output", str(page)])
    bench_quant.main()
    text = page.read_text()
    assert capsys.readouterr().out.startswith(text)
    rows = re.findall(r"^\| 128 \| 1024 \|(.+)\|$", text, re.MULTILINE)
    assert len(rows) == 3
    for row in rows:
        assert len(re.findall(r"\d+\.\d\d \(\d+ %\)", row)) >= 2
