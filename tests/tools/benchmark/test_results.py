"""A page of results says where its numbers come from, and a table and a plot hold them."""

from __future__ import annotations

import math
import re
import sys
import time
from pathlib import Path

import pytest
import torch

from sgljit_tools.benchmark import Figure, results
from sgljit_tools.benchmark.results import sweep, to_markdown, write_plot, write_results

ROWS = [
    {"shape": "1 x 4096", "ours": Figure(1.5, 1.4, 1.6, num_bytes=100, copy_microseconds=1.2), "theirs": 3.0},
    {"shape": "2 x 4096", "ours": Figure(20.0, 19.0, 21.0), "theirs": math.nan, "note": "new"},
]


def test_a_sweep_calls_every_line_at_every_place():
    def run(tokens: int, hidden: int, provider: str) -> float:
        return {"a": tokens, "b": hidden}[provider]

    assert sweep(run, ["tokens", "hidden"], [(1, 64), [2, 128]], ["a", "b"]) == [
        {"tokens": 1, "hidden": 64, "a": 1, "b": 64, "a / best of the others": 1 / 64},
        {"tokens": 2, "hidden": 128, "a": 2, "b": 128, "a / best of the others": 2 / 128},
    ]


def test_the_ratio_is_to_the_fastest_of_the_others():
    times = [{"ours": Figure(2.0, 2.0, 2.0), "a": 4.0, "b": math.nan}, {"ours": 3.0, "a": 4.0, "b": 2.0}]
    times += [{"ours": math.nan, "a": 4.0, "b": 2.0}, {"ours": 1.0, "a": math.nan, "b": math.nan}]
    rows = sweep(lambda number, provider: times[number][provider], ["number"], [[i] for i in range(4)], list(times[0]))
    ratios = [row["ours / best of the others"] for row in rows]
    assert ratios[:2] == [0.5, 1.5]
    assert all(map(math.isnan, ratios[2:]))


def test_a_table_has_every_column_and_leaves_out_what_is_not_known():
    assert to_markdown(ROWS) == (
        "| shape | ours | theirs | note |\n"
        "|---|---|---|---|\n"
        "| 1 x 4096 | 1.50 (80 %) | 3.000 |  |\n"
        "| 2 x 4096 | 20.00 |  | new |\n"
    )


def test_a_page_names_the_machine_the_day_and_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python3", "-m", "x.bench", "--output", "/home/me/out", "a b"])
    path = tmp_path / "results" / "x.md"
    page = write_results(
        path, "X", {"": ROWS[:1], "Second": ROWS[1:]}, note="Microseconds.", plots={"X": Path("x.svg")}
    )
    assert path.read_text() == page
    blocks = page.split("\n\n")
    assert blocks[0] == "# X"
    assert blocks[1].startswith(time.strftime("%Y-%m-%d, "))
    assert f"torch {torch.__version__}" in blocks[1]
    assert blocks[1].endswith("\nCommand: `python -m x.bench --output out 'a b'`")
    assert blocks[2] == "Microseconds."
    assert blocks[3].startswith("| shape | ours | theirs |")
    assert blocks[4] == "## Second"
    assert blocks[6] == "![X](x.svg)\n"


def test_a_page_of_the_cpu_names_its_cores():
    assert re.search(r", \d+ cores, Python 3", results.machine("cpu"))


def test_a_page_need_not_be_written():
    assert write_results(None, "X", {"": ROWS}).startswith("# X\n")


def test_a_plot_is_an_svg_and_the_same_numbers_make_the_same_file(tmp_path: Path):
    pytest.importorskip("matplotlib")
    files = [tmp_path / name for name in ("a.svg", "b.svg")]
    for file in files:
        assert write_plot(file, ROWS, ["ours", "theirs"], place=lambda row: row["shape"], title="X")
    text = files[0].read_text()
    assert text.startswith("<?xml")
    for word in ("1 x 4096", "ours", "theirs", "microseconds"):
        assert word in text
    assert text == files[1].read_text()
    assert write_plot(files[0], ROWS, ["ours"], place=lambda row: row["shape"], quantity="percent_of_copy")


def test_without_matplotlib_there_is_no_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(results.importlib.util, "find_spec", lambda _: None)
    assert not write_plot(tmp_path / "a.svg", ROWS, ["ours"], place=lambda row: row["shape"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.gpu
def test_a_page_of_the_gpu_names_it():
    assert torch.cuda.get_device_name() in results.machine()
