"""The backend of torch.compile uses an op where the pages of bench/results have it faster than the compiler's code."""

from __future__ import annotations

import csv
import re

import isolated
import pytest

measured = pytest.importorskip("sgljit_compile.measured")

import torch  # noqa: E402

from sgljit_compile.adapter import FAMILIES  # noqa: E402

RESULTS = isolated.ROOT / "bench/results"
WORST = 1.02  # of the compiler's time; below that runs differ
_HEAD_OF_GPT_OSS = 64


def dtype_of(name):
    return getattr(torch, name)


def of_grid(op, neighbour=False):
    """The rows, size, dtype and ratio of each cell of a CSV file.

    The ratio is the op's time to the compiler's; with a neighbour, the compiler's to that of the op and a plain copy.
    """
    with (RESULTS / "norm_grid.csv").open() as file:
        for row in csv.DictReader(file):
            if row["op"] == op:
                ours, theirs, copy = (float(row[name]) for name in ("sgljit", "torch.compile", "copy"))
                ratio = theirs / (ours + copy) if neighbour else ours / theirs
                yield int(row["tokens"]), int(row["size"]), dtype_of(row["dtype"]), ratio


def of_page(page, op, neighbour=False):
    """The same of the tables of a page that are named after an op, beside PyTorch where the compiler calls that."""
    text = (RESULTS / page).read_text()
    found = re.search(rf"^## {op}(?:, (\w+))?\n\n((?:\|.*\n)+)", text, re.MULTILINE)
    if not found:
        return
    dtype = torch.int64 if op == "sort_by_expert" else torch.float32 if op == "topk_softmax" else torch.bfloat16
    head, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in found[2].splitlines())
    for line in lines:
        cells = dict(zip(head, line, strict=True))
        size = int(cells.get("size") or cells["experts"])
        if "window" in cells:
            size *= int(cells["window"]) * int(cells["heads"])
        ours, theirs = (float(cells[name].split()[0]) for name in ("sgljit", head[head.index("PyTorch")]))
        if "torch.compile" in cells:
            theirs = min(theirs, float(cells["torch.compile"].split()[0]))
        ratio = theirs / (ours + float(cells["copy"])) if neighbour else ours / theirs
        yield int(cells.get("tokens") or cells["rows"]), size, dtype, ratio


def of_models(op):
    """The same of whole steps, in which all chains are on ops: with the sizes that an op has there."""
    pattern = re.compile(
        r"^\| (\w+) (\d+)[^|]*\| decode \| (\d+) \|.*?\| \d.*?\| \d+\.\d+ \((\d+\.\d+) x", re.MULTILINE
    )
    for model, hidden, users, times in pattern.findall((RESULTS / "compiled.md").read_text()):
        sizes = {
            "gemma_fused_rmsnorm_add_rmsnorm": int(hidden) if model == "gemma3_text" else 0,
            "apply_rope_inplace_with_kvcache": _HEAD_OF_GPT_OSS if model == "gpt_oss" else 0,
            "topk_softmax": {"gpt_oss": 8, "qwen3_moe": 32}.get(model, 0),
            "sort_by_expert": {"gpt_oss": 8, "qwen3_moe": 32}.get(model, 0),
            "expert_matvec": int(hidden) if model in ("gpt_oss", "qwen3_moe") else 0,
        }
        if size := sizes.get(op, 0):
            dtype = torch.int64 if op == "sort_by_expert" else torch.bfloat16
            yield int(users), size, dtype, 1 / float(times)


def cells(one):
    special = {"norm_grid.csv": of_grid, "compiled.md": of_models}
    for page in one.pages:
        for op in sorted(one.ops):
            yield from special[page](op) if page in special else of_page(page, op)


def inside(one, found):
    """The cells within a row of the table."""
    return [
        (rows, size, ratio)
        for rows, size, dtype, ratio in found
        if dtype in one.dtypes and one.sizes[0] <= size <= one.sizes[1] and one.rows[0] <= rows <= one.rows[1]
    ]


@pytest.mark.parametrize("one", measured.FORMULAS, ids=lambda one: min(one.ops))
def test_a_kernel_of_the_compiler_takes_less_than_an_op_and_a_neighbour(one):
    (page,) = one.pages
    for op in one.ops:
        found = inside(one, of_grid(op, neighbour=True) if page.endswith("csv") else of_page(page, op, neighbour=True))
        assert found
        assert [cell for cell in found if cell[2] > WORST] == []


def test_every_op_has_a_row():
    assert frozenset().union(*(one.ops for one in measured.TABLE)) == FAMILIES.keys()


@pytest.mark.parametrize("one", measured.TABLE, ids=lambda one: f"{min(one.ops)}-{one.sizes[0]}-{len(one.dtypes)}")
def test_no_cell_of_a_row_is_slower_on_its_pages(one):
    found = inside(one, cells(one))
    assert [cell for cell in found if cell[2] > WORST] == []
    assert (min(size for _, size, _ in found), max(size for _, size, _ in found)) == one.sizes, "the ends are cells"
    assert (min(rows for rows, _, _ in found), max(rows for rows, _, _ in found)) == one.rows, "the ends are cells"


def test_the_pages_are_of_one_chip():
    for page in {page.replace(".csv", ".md") for one in measured.TABLE for page in one.pages}:
        (chips,) = re.findall(r"^\d{4}-\d\d-\d\d, NVIDIA (H\d+)", (RESULTS / page).read_text(), re.MULTILINE)
        assert chips in ("H100", "H200"), f"{page}: measured.CHIP is that of these"
