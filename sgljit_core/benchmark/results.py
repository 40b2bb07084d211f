"""How do measurements become a file that can be believed?

A page of Markdown: on what machine, when and by which command it was measured, and tables; beside it an SVG plot where
matplotlib is installed. ``sweep`` fills the rows of a table from a ``triton.testing.Benchmark``, which
``make_benchmark`` makes.
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from .measure import Figure

if TYPE_CHECKING:
    import torch


Row = Mapping[str, Any]


def make_benchmark(
    name: str, x_names: Sequence[str], x_vals: Sequence[Any], lines: Sequence[str], line_arg: str = "provider"
) -> Any:
    """A ``triton.testing.Benchmark`` where triton is installed; elsewhere what has its fields.

    Args:
        name: of the plot.
        x_names, x_vals: what a place is called, and the places.
        lines: what is compared at each place, by name.
        line_arg: the keyword that a line is passed by.
    """
    fields = {
        "x_names": list(x_names),
        "x_vals": list(x_vals),
        "line_arg": line_arg,
        "line_vals": list(lines),
        "line_names": list(lines),
        "plot_name": name,
        "args": {},
    }
    if importlib.util.find_spec("triton") is None:
        return SimpleNamespace(**fields)
    return importlib.import_module("triton.testing").Benchmark(**fields)


def sweep(benchmark: Any, run: Callable[..., Any]) -> list[dict[str, Any]]:
    """Call ``run`` for each place and each line of a ``triton.testing.Benchmark``; a row for each place.

    Args:
        benchmark: what has the fields of ``triton.testing.Benchmark``: ``x_names``, ``x_vals``, ``line_arg``,
            ``line_vals``, ``line_names``, ``args``. Needs no triton.
        run: what ``perf_report`` would be given: ``run(**place, **{line_arg: line}, **args)``. Returns a ``Figure``, a
            number, or (median, low, high) as ``run_benchmark`` does; NaN where a line does not serve a place.
    """
    rows = []
    for value in benchmark.x_vals:
        values = value if isinstance(value, (list, tuple)) else [value] * len(benchmark.x_names)
        place = dict(zip(benchmark.x_names, values, strict=True))
        row = dict(place)
        for line, name in zip(benchmark.line_vals, benchmark.line_names, strict=True):
            result = run(**place, **{benchmark.line_arg: line}, **benchmark.args)
            row[name] = Figure(*result) if isinstance(result, tuple) else result
        rows.append(row)
    return rows


def with_ratio(rows: Sequence[Row], ours: str, others: Sequence[str]) -> list[dict[str, Any]]:
    """The rows with one more column: our time over that of the fastest of others, so that below 1 is faster."""

    def ratio(row: Row) -> float:
        times = [_number(row[name]) for name in others if name in row]
        return _number(row[ours]) / min((t for t in times if not math.isnan(t)), default=math.nan)

    return [{**row, f"{ours} / best of the others": ratio(row)} for row in rows]


def to_markdown(rows: Sequence[Row]) -> str:
    """A table with the columns of all rows, in the order of their first appearance.

    A ``Figure`` is microseconds, with the percent of a plain copy in brackets where that is known. NaN is empty.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(_cell(row.get(name, '')) for name in columns)} |" for row in rows]
    return "\n".join(lines) + "\n"


def machine(device: torch.device | str | None = None) -> str:
    """What was measured on and when, in a line.

    Args:
        device: what was measured; default: the current CUDA device if there is one, else the CPU.
    """
    import torch

    on_cuda = torch.cuda.is_available() if device is None else torch.device(device).type == "cuda"
    parts = [time.strftime("%Y-%m-%d"), _processor(), f"{len(os.sched_getaffinity(0))} cores"]
    if on_cuda:
        name = torch.cuda.get_device_name(device)
        parts[1:] = [name, f"CUDA {torch.version.cuda}"]
    parts += [f"Python {platform.python_version()}", f"torch {torch.__version__}"]
    return ", ".join(parts)


def command() -> str:
    """How this process was started; of an absolute path only its name, as its place means nothing elsewhere."""
    arguments = [Path(a).name if Path(a).is_absolute() else a for a in sys.orig_argv]
    return shlex.join(["python", *arguments[1:]])


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
        title: of the page.
        tables: by heading; an empty heading is left out.
        note: what the numbers are: unit, what was compared, what was left out.
        plots: pictures to show, by description; a path relative to the page's directory is shown as it is.
        device: what was measured, as for ``machine``.
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
        rows: of the table; a cell may be a number or a ``Figure``.
        lines: the columns to draw. NaN is a gap.
        place: what is written below a row, say "1024 x 4096".
        quantity: which attribute of a ``Figure``. Microseconds are drawn on a logarithmic scale.
        ylabel, title: default: ``quantity``, and none.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return False
    matplotlib = importlib.import_module("matplotlib")
    figure_module = importlib.import_module("matplotlib.figure")
    path.parent.mkdir(parents=True, exist_ok=True)
    # The same numbers make the same file: no random ids, no date.
    with matplotlib.rc_context({"svg.hashsalt": "sgljit", "svg.fonttype": "none"}):
        figure = figure_module.Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        for name in lines:
            axes.plot(range(len(rows)), [_number(row.get(name), quantity) for row in rows], marker="o", label=name)
        axes.set_xticks(range(len(rows)), [place(row) for row in rows], rotation=30, ha="right")
        axes.set_ylabel(ylabel or quantity.replace("_", " "))
        axes.set_title(title)
        axes.grid(visible=True, alpha=0.3)
        if quantity == "microseconds":
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
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


def _processor() -> str:
    """The CPU's name, where the system says it."""
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.machine()
