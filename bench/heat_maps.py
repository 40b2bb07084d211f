"""Where are ops ahead of their peers, and where behind? A picture of each page of bench/results that compares them.

It reads the pages: a line of cells for each table and each shape but the first column, which is the number of tokens or
rows. A cell is our time divided by the best of the others. The plain norms have pictures of their own.

    python bench/heat_maps.py [--results bench/results]
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sgljit_norm.bench.heat_map import write_heat_map

PAGES = ("layer", "rope", "kvcache", "moe", "quant", "norm_quant", "activation", "activation_quant", "sampling")
OP, RATIO = "op", "sgljit / best of the others"
TEXT = """# Our time divided by the best of the others

Drawn by `python bench/heat_maps.py` from the pages, which have the machines, the dates and the commands. Green cells
are below 1. The plain norms are in [norm_grid.md](norm_grid.md).
"""


def cells(page: str) -> Iterator[dict[str, Any]]:
    """The cells of the tables of a page: the number of tokens or rows, the op with its shape, and the ratio."""
    for heading, table in re.findall(r"^## (.+)\n\n((?:\|.*\n)+)", page, re.MULTILINE):
        names, _, *rows = ([cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines())
        if RATIO not in names:
            continue
        first, *others = names[: names.index("sgljit")]
        for row in rows:
            found = dict(zip(names, row, strict=True))
            op = ", ".join([heading, *(f"{found[name]} {name}" for name in others)])
            yield {first: int(found[first]), OP: op, RATIO: float(found[RATIO] or "nan")}


def draw(results: Path) -> str:
    """Write a picture beside each page, and return the text that shows them."""
    text = TEXT
    for name in PAGES:
        found = list(cells((results / f"{name}.md").read_text(encoding="utf-8")))
        picture, x = f"{name}_heat_map.svg", next(iter(found[0]))
        found = [{x: row.pop(next(iter(row))), **row} for row in found]  # a page may have tokens and rows
        write_heat_map(results / picture, found, x=x, y=OP, value=RATIO)
        text += f"\n## [{name}]({name}.md)\n\n![{name}: our time divided by the best of the others]({picture})\n"
    return text


def main() -> None:
    """Draw, and write the page that shows the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    results = parser.parse_args().results
    (results / "heat_maps.md").write_text(draw(results), encoding="utf-8")


if __name__ == "__main__":
    main()
