"""Ratios as a grid of coloured cells."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_heat_map(
    path: Path, rows: Sequence[Mapping[str, Any]], *, x: str, y: str, value: str, title: str = ""
) -> None:
    """Draw ratios as a grid of coloured cells, into an SVG file: green below 1, red above. NaN is an empty cell.

    Args:
        path: the file; its directory is made.
        rows: the rows of the table.
        x, y: the columns that name a cell's place: from left to right in order, from top to bottom as in ``rows``.
        value: the column of its ratio.
        title: above the grid.
    """
    columns, lines = sorted({row[x] for row in rows}), list(dict.fromkeys(row[y] for row in rows))
    width, height, top = 52, 22, 60 if title else 34
    left = max(80, 8 + 7 * max(len(str(line)) for line in lines))  # pixels of a letter
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width * len(columns)}" '
        f'height="{top + height * len(lines) + 10}" font-family="sans-serif" font-size="12">',
        f'<text x="{left}" y="18" font-size="14">{html.escape(title)}</text>',
        f'<text x="4" y="{top - 8}">{html.escape(y)} \\ {html.escape(x)}</text>',
    ]
    for i, column in enumerate(columns):
        parts.append(f'<text x="{left + width * (i + 0.5)}" y="{top - 8}" text-anchor="middle">{column}</text>')
    for i, line in enumerate(lines):
        parts.append(
            f'<text x="{left - 8}" y="{top + height * i + 16}" text-anchor="end">{html.escape(str(line))}</text>'
        )
    for row in rows:
        ratio = float(row[value])
        if math.isnan(ratio):
            continue
        shade = 100 - min(45, round(abs(math.log(ratio)) * 90))  # percent of light: 55 for 1.65 times either way
        place = f'x="{left + width * columns.index(row[x])}" y="{top + height * lines.index(row[y])}"'
        middle = f'x="{left + width * (columns.index(row[x]) + 0.5)}" y="{top + height * lines.index(row[y]) + 16}"'
        colour = f"hsl({130 if ratio < 1 else 5}, 70%, {shade}%)"
        parts.append(f'<rect {place} width="{width - 1}" height="{height - 1}" fill="{colour}"/>')
        parts.append(f'<text {middle} text-anchor="middle">{ratio:.2f}</text>')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")
