"""The pictures of bench/results show what its pages say, and so do the texts that quote figures."""

from __future__ import annotations

import importlib.util
import math
import re
import shutil
import sys

import isolated
import pytest

pytest.importorskip("sgljit_norm")

RESULTS = isolated.ROOT / "bench/results"


def program(name):
    spec = importlib.util.spec_from_file_location(name, isolated.ROOT / f"bench/{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def heat_maps():
    return program("heat_maps")


@pytest.fixture(scope="module")
def quoted():
    return program("quoted")


def test_the_heat_maps_are_those_of_the_pages(heat_maps, tmp_path):
    for name in heat_maps.PAGES:
        shutil.copy(RESULTS / f"{name}.md", tmp_path)
    assert heat_maps.draw(tmp_path) == (RESULTS / "heat_maps.md").read_text(), "run python bench/heat_maps.py"
    drawn = {path.name: path.read_text() for path in tmp_path.glob("*.svg")}
    assert drawn == {path.name: path.read_text() for path in RESULTS.glob("*_heat_map.svg")}


def test_a_cell_is_a_ratio_of_a_table(heat_maps):
    page = (
        "# A page\n\n## an_op\n\n| tokens | size | sgljit | other | sgljit / best of the others |\n"
        "|---|---|---|---|---|\n"
        "| 1 | 64 | 1.0 (9 %) | 2.0 | 0.500 |\n| 8 | 64 | 1.0 (9 %) |  |  |\n\n## text\n\nnone\n"
        "\n## another comparison\n\n| tokens | fused / its parts |\n|---|---|\n| 1 | 0.500 |\n"
    )
    first, second = heat_maps.cells(page)
    assert first == {"tokens": 1, "op": "an_op, 64 size", "sgljit / best of the others": 0.5}
    assert second["sgljit / best of the others"] != second["sgljit / best of the others"]


def test_the_cells_that_are_behind_are_counted(heat_maps):
    pages = ((RESULTS / f"{name}.md").read_text() for name in heat_maps.PAGES)
    ratios = [cell[heat_maps.RATIO] for page in pages for cell in heat_maps.cells(page)]
    ratios = [ratio for ratio in ratios if not math.isnan(ratio)]
    text = (isolated.ROOT / "docs/speed.md").read_text()
    counted = re.search(r"(\d+) of (\d+) cells\s+are above 1\.02", text)
    assert counted, "docs/speed.md says how many cells are above 1.02"
    assert [int(number) for number in counted.groups()] == [sum(ratio > 1.02 for ratio in ratios), len(ratios)]


def test_every_quoted_figure_is_on_its_page(quoted):
    assert quoted.problems() == [], "see the rules at the top of bench/quoted.py"


PAGE = "[page](bench/results/planted.md)"


@pytest.fixture
def planted(quoted, tmp_path, monkeypatch):
    """The program beside pages of the test's own."""
    (tmp_path / "planted.md").write_text("# Page\n\nCommand: `python bench/cache.py`\n\n| a | 20.3 |\n| b | 14.8 |\n")
    (tmp_path / "bare.md").write_text("# Page\n\n| a | 1.5 |\n")
    monkeypatch.setattr(quoted, "RESULTS", tmp_path)
    return quoted


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("It takes 20.3 ms.", "'20.3 ms' is a measurement, and its paragraph links no page"),
        ("It takes 20 us.", "'20 us' is a measurement, and its paragraph links no page"),
        ("It has 16.2 MB.", "'16.2 MB' is a measurement"),
        ("It takes half of it,\nor 1.4 times as long.", "'1.4 times' is a measurement"),
        ("From 12 to 13 ms.", "'12 to 13 ms' is a measurement"),
        ("Measured.\n\n| a | ms |\n|---|---|\n| b | 77 |\n", "t:5: '77' is a measurement"),
        (f"{PAGE}\n\nIt takes 20.3 ms.", "t:3: '20.3 ms' is a measurement"),
        (f"It takes 20.4 ms ({PAGE}).", "20.4 is not on planted.md"),
        (f"It takes 19 ms ({PAGE}).", "19 is not on planted.md"),
        (f"The ratio is 0.77 ({PAGE}).", "0.77 is not on planted.md"),
        (f"{PAGE}:\n\n| a | b |\n|---|---|\n| 77 | |\n", "t:5: 77 is not on planted.md"),
        ("See [it](bench/results/nothing.md).", "there is no bench/results/nothing.md"),
        ("See [it](../bench/results/bare.md).", "bare.md has no command"),
    ],
)
def test_a_figure_that_no_page_has_is_found(planted, text, problem):
    (found,) = planted.in_text("t", text)
    assert problem in found


@pytest.mark.parametrize(
    "text",
    [
        f"It takes 20.3 ms, or 20 ms, or 0.020 s ({PAGE}).",
        f"{PAGE}:\n\n| a | ms |\n|---|---|\n| `77` on H100, Qwen3 8B | 14.8 |\n",
        "It waits for 30 seconds, or 2 GiB, or ten times.",
        "```\nIt takes 20.3 ms.\n```\n",
        "torch 2.13.0 and `12 ms`",
    ],
)
def test_a_figure_of_a_page_may_be_rounded_and_a_limit_is_no_figure(planted, text):
    assert [*planted.in_text("t", text)] == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Command: `python bench/nothing.py`", "runs a program that is not there"),
        ("Command: `python -m sgljit_norm.bench.nothing`", "runs a program that is not there"),
        ("Command: `python bench/cache.py --round 2`", "bench/cache.py has no option --round"),
        ("![a picture](nothing.svg)", "there is no file nothing.svg"),
        ("## fused_everything, in place", "no plugin has the op fused_everything"),
        ("| op | us |\n|---|---|\n| rmsnorms | 1 |\n", "no plugin has the op rmsnorms"),
    ],
)
def test_a_page_that_cannot_be_measured_again_is_found(quoted, text, problem):
    (found,) = quoted.in_page("p", f"# Page\n\n{text}\n")
    assert problem in found
