"""The benchmark runs, and its page has a table for each op and a figure for each provider."""

from __future__ import annotations

import csv
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from sgljit_norm import reference
from sgljit_norm.bench import bench_norm, grid, open_models, tune
from sgljit_norm.bench.heat_map import write_heat_map


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
    assert re.findall(r"^## (.*), bfloat16$", text, re.MULTILINE) == list(bench_norm.SUBJECTS)
    assert len(rows) == len(bench_norm.SUBJECTS)
    for row in rows:
        assert len(re.findall(r"\d+\.\d\d \(\d+ %\)", row)) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_short_range_of_the_quantised(device: str, tmp_path: Path):
    page = tmp_path / "norm_quant.md"
    module, chosen = (
        "sgljit_norm.bench.bench_norm_quant",
        ["rmsnorm_quant.token", "fused_add_rmsnorm_quant.group_packed"],
    )
    script = (sys.executable, "-m", module, "--device", device, "--ops", ",".join(chosen), "--output", str(page))
    result = subprocess.run(script, env={**os.environ, "CI": "1"}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    text = page.read_text()
    assert result.stdout.startswith(text)
    assert re.findall(r"^## (.+), (.+)$", text, re.MULTILINE) == [tuple(one.split(".")) for one in chosen]
    rows = re.findall(r"^\| 128 \| 1024 \|(.+)\|$", text, re.MULTILINE)
    assert len(rows) == 2
    for row in rows:
        assert len(re.findall(r"\d+\.\d\d \(\d+ %\)", row)) >= 2


@pytest.mark.slow
@pytest.mark.gpu
def test_the_grid_has_a_heat_map_for_each_op_and_all_times(tmp_path: Path):
    page = tmp_path / "norm_grid.md"
    script = (sys.executable, "-m", "sgljit_norm.bench.grid", "--compilers", "2", "--dtypes", "bfloat16")
    result = subprocess.run(
        [*script, "--ops", "layernorm,fused_inplace_qknorm_across_heads", "--tokens", "1,8", "--output", str(page)],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    for op in ("layernorm", "fused_inplace_qknorm_across_heads"):
        assert f"(norm_grid_{op}.svg)" in page.read_text()
        assert "ours / best other" in (tmp_path / f"norm_grid_{op}.svg").read_text()
    assert "falcon-7b" in page.read_text()
    with (tmp_path / "norm_grid.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == (8 + 4) * 2
    for row in rows:
        assert all(float(row[name]) > 0 for name in ("sgljit", "torch.compile", "PyTorch", "copy"))


def test_the_sizes_of_the_grid_are_those_of_the_models():
    assert len({*open_models.RMSNORM, *open_models.GEMMA_RMSNORM}) >= 30
    for models in (open_models.RMSNORM, open_models.GEMMA_RMSNORM, open_models.LAYERNORM):
        for (size,) in open_models.places_of(models):
            assert size % 64 == 0
            assert 0 < size <= 16384
            assert open_models.models_of((size,), models)
    assert open_models.models_of((7168,), open_models.RMSNORM) == "DeepSeek-V3, Kimi-K2-Instruct"
    assert open_models.models_of((16, 8, 256), open_models.GEMMA_QKNORM) == "gemma-3-12b-it"


@pytest.mark.parametrize("name", grid.OPS)
def test_what_the_grid_compares_with_is_the_op(name: str):
    """PyTorch's functions of the grid, beside the family's references in float64."""
    op = grid.OPS[name]
    place = grid.places_of(name, "bfloat16")[0]
    tensors = [torch.randn(shape, dtype=torch.float64) for shape in op.shapes(3, *place)]
    got = op.pytorch(*tensors)
    getattr(reference, name)(*tensors)
    for one, index in zip(got, op.results, strict=True):
        torch.testing.assert_close(one, tensors[index], rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
def test_the_tuner_finds_a_layout_for_each_shape():
    rows = list(tune.tune("rmsnorm", [512, 4096], list(tune.TOKENS), torch.bfloat16))
    shapes = [(size, tokens) for size in (512, 4096) for tokens in tune.TOKENS]
    assert [(row["size"], row["tokens"]) for row in rows if not row["cached"]] == shapes
    cached = [shape for shape in shapes if 4 * math.prod(shape) <= tune.CACHED]
    assert [(row["size"], row["tokens"]) for row in rows if row["cached"]] == cached
    for row in rows:
        assert row["chosen"] in row["layouts"]
        assert row["best us"] == min(row["layouts"].values())
        assert row["rule / best"] >= 1
    table = tune.lines(rows)
    assert list(table) == [32, 64, 512, 4096]
    assert all(len(entries) == 8 for entries in table.values())


def test_a_heat_map_shows_each_ratio_in_its_cell_and_colour(tmp_path: Path):
    ratios = {(1, 64): 0.5, (8, 64): 1.25, (1, 128): math.nan, (8, 128): 1.0}
    rows = [{"tokens": tokens, "size": size, "ratio": ratio} for (tokens, size), ratio in ratios.items()]
    file = tmp_path / "new" / "map.svg"
    write_heat_map(file, rows, x="tokens", y="size", value="ratio", title="a < b")
    drawing = ElementTree.parse(file).getroot()
    tag = "{http://www.w3.org/2000/svg}"
    texts = {text.text: (float(text.get("x")), float(text.get("y"))) for text in drawing.iter(f"{tag}text")}
    assert {"a < b", "1", "8", "64", "128", "0.50", "1.25", "1.00"} <= texts.keys()
    assert texts["0.50"][0] == texts["1"][0] < texts["1.25"][0] == texts["1.00"][0] == texts["8"][0]
    assert texts["0.50"][1] == texts["1.25"][1] == texts["64"][1] < texts["1.00"][1] == texts["128"][1]
    hues = [rect.get("fill").partition(",")[0] for rect in drawing.iter(f"{tag}rect")]
    assert hues == ["hsl(130", "hsl(5", "hsl(5"]
