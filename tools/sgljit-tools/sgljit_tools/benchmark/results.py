"""How do measurements become a page that others can check?

A page names the machine, the date and the command, and has tables; beside it is a plot if matplotlib is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .measure import Figure

Row = Mapping[str, Any]


def sweep(
    run: Callable[..., Figure | float], names: Sequence[str], places: Iterable[Sequence[Any]], lines: Sequence[str]
) -> list[dict[str, Any]]:
    """Call ``run`` for each place and each line; a row for each place.

    A row has one more column: the first line's time divided by that of the fastest of the others. Below 1 is faster.

    Args:
        run: ``run(**place, provider=line)``; returns NaN if a line does not serve a place.
        names, places: the names of a place's coordinates, and the places.
        lines: the things to compare at each place, ours first.
    """
    rows = []
    for place in places:
        coordinates = dict(zip(names, place, strict=True))
        found = {line: run(**coordinates, provider=line) for line in lines}
        ours, *others = map(_number, found.values())
        best = min((time for time in others if not math.isnan(time)), default=math.nan)
        rows.append({**coordinates, **found, f"{lines[0]} / best of the others": ours / best})
    return rows


def to_markdown(rows: Sequence[Row]) -> str:
    """A table with the columns of all rows, in the order of their first appearance.

    A ``Figure`` appears as microseconds, followed by the percent of a plain copy if that is known; NaN as nothing.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(_cell(row.get(name, '')) for name in columns)} |" for row in rows]
    return "\n".join(lines) + "\n"


def machine(device: torch.device | str | None = None) -> str:
    """The date, the machine and the versions of a measurement, in a line.

    Args:
        device: the measured device; default: the current CUDA device if there is one, else the CPU.
    """
    if torch.cuda.is_available() if device is None else torch.device(device).type == "cuda":
        measured = [torch.cuda.get_device_name(device), f"CUDA {torch.version.cuda}"]
    else:
        file = Path("/proc/cpuinfo")  # which has the CPU's name, if the system reports it
        found = re.search(r"^model name\s*: (.+)$", file.read_text() if file.exists() else "", re.MULTILINE)
        name = found[1].strip() if found else platform.machine()
        measured = [name, f"{len(os.sched_getaffinity(0))} cores"]
    versions = [f"Python {platform.python_version()}", f"torch {torch.__version__}"]
    return ", ".join([time.strftime("%Y-%m-%d"), *measured, *versions])


def command() -> str:
    """The command line of this process, with only the name of each absolute path."""
    return shlex.join(["python", *(Path(a).name if Path(a).is_absolute() else a for a in sys.orig_argv[1:])])


def write_results(
    path: Path | None,
    title: str,
    tables: Mapping[str, Sequence[Row]],
    *,
    note: str = "",
    plots: Mapping[str, Path] | None = None,
    device: torch.device | str | None = None,
) -> str:
    """Write a page of results, and return its text.

    Args:
        path: the Markdown file; its directory is made. None writes nothing.
        tables: the tables by heading; an empty heading is left out.
        note: the meaning of the numbers: their unit, what is compared, what is left out.
        plots: pictures to show, by description; paths relative to the page's directory.
        device: the measured device, as for ``machine``.
    """
    parts = [f"# {title}", f"{machine(device)}.\nCommand: `{command()}`"]
    parts += [note.strip()] if note else []
    for heading, rows in tables.items():
        parts += [f"## {heading}"] if heading else []
        parts.append(to_markdown(rows).rstrip())
    parts += [f"![{text}]({picture.as_posix()})" for text, picture in (plots or {}).items()]
    page = "\n\n".join(parts) + "\n"
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    return page


def write_plot(
    path: Path,
    rows: Sequence[Row],
    lines: Sequence[str],
    *,
    place: Callable[[Row], str],
    quantity: str = "microseconds",
    ylabel: str = "",
    title: str = "",
) -> bool:
    """Draw columns of a table as lines over its rows, into an SVG file. Without matplotlib: False, and no file.

    Args:
        path: the file; its directory is made.
        rows: the rows of the table; a cell may be a number or a ``Figure``.
        lines: the columns to draw. NaN is a gap.
        place: the label of a row, such as "1024 x 4096".
        quantity: the attribute of a ``Figure`` to draw. Microseconds get a logarithmic scale.
        ylabel: default: ``quantity``.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return False
    matplotlib, drawing = map(importlib.import_module, ("matplotlib", "matplotlib.figure"))
    path.parent.mkdir(parents=True, exist_ok=True)
    # No random ids and no date, so that the same numbers make the same file.
    with matplotlib.rc_context({"svg.hashsalt": "sgljit", "svg.fonttype": "none"}):
        figure = drawing.Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        for name in lines:
            axes.plot(range(len(rows)), [_number(row.get(name), quantity) for row in rows], marker="o", label=name)
        axes.set_xticks(range(len(rows)), [place(row) for row in rows], rotation=30, ha="right")
        axes.set(ylabel=ylabel or quantity.replace("_", " "), title=title)
        axes.grid(visible=True, alpha=0.3)
        axes.set(**({"yscale": "log"} if quantity == "microseconds" else {"ylim": (0, None)}))
        figure.legend(loc="outside right upper")  # on no line
        figure.savefig(path, format="svg", metadata={"Date": None})
    return True


def _number(value: Any, quantity: str = "microseconds") -> float:
    if isinstance(value, Figure):
        return float(getattr(value, quantity))
    return float(value) if isinstance(value, (int, float)) else math.nan


def _cell(value: Any) -> str:
    if isinstance(value, Figure):
        percent = value.percent_of_copy
        return f"{value.microseconds:.2f}" + ("" if math.isnan(percent) else f" ({percent:.0f} %)")
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"
    return str(value)
