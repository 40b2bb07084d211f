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


def of_grid(op):
    """The rows, size, dtype and ratio of each cell of a CSV file."""
    with (RESULTS / "norm_grid.csv").open() as file:
        for row in csv.DictReader(file):
            if row["op"] == op:
                ratio = float(row["sgljit"]) / float(row["torch.compile"])
                yield int(row["tokens"]), int(row["size"]), dtype_of(row["dtype"]), ratio


def of_page(page, op):
    """The same of the tables of a page that are named after an op, beside PyTorch where the compiler calls that."""
    text = (RESULTS / page).read_text()
    found = re.search(rf"^## {op}(?:, (\w+))?\n\n((?:\|.*\n)+)", text, re.MULTILINE)
    if not found:
        return
    dtype = torch.int64 if op == "sort_by_expert" else torch.float32 if op == "topk_softmax" else torch.bfloat16
    head, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in found[2].splitlines())
    for line in lines:
        cells = dict(zip(head, line, strict=True))
        size = int(cells.get("experts") or cells["size"])
        if "window" in cells:
            size *= int(cells["window"]) * int(cells["heads"])
        ours, theirs = (float(cells[name].split()[0]) for name in ("sgljit", head[head.index("PyTorch")]))
        if "torch.compile" in cells:
            theirs = min(theirs, float(cells["torch.compile"].split()[0]))
        yield int(cells["tokens"]), size, dtype, ours / theirs


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
        }
        if size := sizes.get(op, 0):
            dtype = torch.int64 if op == "sort_by_expert" else torch.bfloat16
            yield int(users), size, dtype, 1 / float(times)


def cells(one):
    for page in one.pages:
        for op in sorted(one.ops):
            yield from (
                of_grid(op) if page.endswith(".csv") else of_models(op) if page == "compiled.md" else of_page(page, op)
            )


def test_every_op_has_a_row():
    assert frozenset().union(*(one.ops for one in measured.TABLE)) == FAMILIES.keys()


@pytest.mark.parametrize("one", measured.TABLE, ids=lambda one: f"{min(one.ops)}-{one.sizes[0]}-{len(one.dtypes)}")
def test_no_cell_of_a_row_is_slower_on_its_pages(one):
    found = [cell for cell in cells(one) if cell[2] in one.dtypes]
    inside = [
        (rows, size, ratio)
        for rows, size, _, ratio in found
        if one.sizes[0] <= size <= one.sizes[1] and one.rows[0] <= rows <= one.rows[1]
    ]
    assert [cell for cell in inside if cell[2] > WORST] == []
    assert (min(size for _, size, _ in inside), max(size for _, size, _ in inside)) == one.sizes, "the ends are cells"
    assert (min(rows for rows, _, _ in inside), max(rows for rows, _, _ in inside)) == one.rows, "the ends are cells"


def test_the_pages_are_of_one_chip():
    for page in {page.replace(".csv", ".md") for one in measured.TABLE for page in one.pages}:
        (chips,) = re.findall(r"^\d{4}-\d\d-\d\d, NVIDIA (H\d+)", (RESULTS / page).read_text(), re.MULTILINE)
        assert chips in ("H100", "H200"), f"{page}: measured.CHIP is that of these"
