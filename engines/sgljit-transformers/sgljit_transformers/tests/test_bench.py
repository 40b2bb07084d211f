"""The benchmark runs, and its page has a row for each phase and each layer."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

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
        row = re.search(rf"^\| qwen3, 2 x 64 \| {phase} \|(.+)\|$", text, re.MULTILINE)
        assert row, text
        assert len(re.findall(r"\d+\.\d\d \(\d+\.\d\d x\)", row[1])) == 7
    assert (
        len(re.findall(r"^\| 2 x 64 \| (?:norm of (?:hidden|q)|MLP), (?:decode|prefill) \|", text, re.MULTILINE)) == 6
    )


@pytest.mark.slow
def test_other_models(capsys):
    from sgljit_transformers.bench import bench_eager

    models = ("llama", "gemma3_text", "qwen3_moe", "gpt_oss")
    options = "--tiny --device cpu --prompt 8 --tokens 2 --repeats 1 --rounds 1 --compiled --models"
    text = bench_eager.main([*options.split(), *models])
    assert capsys.readouterr().out.startswith(text)
    for model in models:
        rows = re.findall(rf"^\| {model}, 2 x 64 \| (?:prefill|decode) \|(.+)\|$", text, re.MULTILINE)
        assert [len(re.findall(r"\d+\.\d\d \(\d+\.\d\d x\)", row)) for row in rows] == [1, 1]
        assert [row.count("not measured") for row in rows] == [4, 4], "parts are measured of Qwen3 alone"


@pytest.mark.slow
def test_what_shadow_costs_a_tiny_model(tmp_path: Path):
    page = tmp_path / "page.md"
    command = (
        sys.executable,
        "-m",
        "sgljit_transformers.bench.bench_shadow",
        "--tiny",
        "--turns",
        "1",
        "--output",
        page,
    )
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    cells = re.search(
        r"^\| 2 x 64 \| ([\d.]+) \| 13 \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (\S+) % \|$",
        page.read_text(),
        re.MULTILINE,
    )
    assert cells, page.read_text()
    step, alone, quiet, compared, added = map(float, cells.groups())
    assert compared > 5 * alone, "its calls are compared"
    assert abs(added - 100 * 13 * (quiet - alone + compared / 1000) / step / 1000) < 0.1


def test_the_bench_of_compiled_models_is_that_of_sgljit_compile(monkeypatch):
    from sgljit_transformers.bench import compiled

    ran = []
    bench = SimpleNamespace(main=lambda: ran.append("main"))
    monkeypatch.setattr(compiled.importlib, "import_module", {"sgljit_compile.bench.compiled": bench}.get)
    compiled.main()
    assert ran == ["main"]


def test_without_sgljit_compile_it_says_how_to_get_it(monkeypatch):
    from sgljit_transformers.bench import compiled

    monkeypatch.setitem(sys.modules, "sgljit_compile", None)
    monkeypatch.delitem(sys.modules, "sgljit_compile.bench.compiled", raising=False)
    with pytest.raises(SystemExit) as info:
        compiled.main()
    assert str(info.value).startswith("the bench is sgljit_compile's, and there is ")
    assert str(info.value).endswith(": pip install 'sgljit-compile[test]'")
