"""The pictures of bench/results show what its pages say."""

from __future__ import annotations

import importlib.util
import shutil

import isolated
import pytest

pytest.importorskip("sgljit_norm")

RESULTS = isolated.ROOT / "bench/results"


@pytest.fixture(scope="module")
def heat_maps():
    spec = importlib.util.spec_from_file_location("heat_maps", isolated.ROOT / "bench/heat_maps.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    )
    first, second = heat_maps.cells(page)
    assert first == {"tokens": 1, "op": "an_op, 64 size", "sgljit / best of the others": 0.5}
    assert second["sgljit / best of the others"] != second["sgljit / best of the others"]
