"""The tables of layouts that were tuned for a chip."""

from __future__ import annotations

import re

from sgljit_core.paths import core_include
from sgljit_norm.bench import tune


def test_the_table_is_what_the_tuner_writes():
    """Read back and written again, the file is the same: nobody edited it."""
    text = (core_include() / "sgl_kernel" / "impl" / "tuned" / "h100.h").read_text()
    made = re.search(r"on an (.+) with PyTorch (.+), (.+)\.\n", text)
    lines = re.findall(r"\{\.vectors = +(\d+), \.threads_per_row = \{(.+?)\}, \.triggers_first = \{(.+?)\}\}", text)
    table = [
        (int(vectors), [(int(n), flag.strip() == "1") for n, flag in zip(*(t.split(",") for t in both), strict=True)])
        for vectors, *both in lines
    ]
    per_op = len(table) // 3
    tables = {op: dict(table[i * per_op :][:per_op]) for i, op in enumerate(tune.WORKS)}
    chip, torch_version, date = made.groups()
    assert tune.header(tables, file="h100.h", chip=chip, torch=torch_version, date=date) == text
