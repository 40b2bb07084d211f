"""How fast are the ops of the family against torch.compile and PyTorch?

    python -m sgljit_sampling.bench [--device cpu|cuda] [--output FILE]

Logits of float32. The bytes of a call are those that are read once and written. With CI set in the environment: one
small shape for each op.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sgljit_core import ops
from sgljit_tools.benchmark import Figure, get_benchmark_range, measure
from sgljit_tools.benchmark.results import sweep, write_results

ROWS = {"cuda": (1, 8, 64, 256), "cpu": (1, 16)}
VOCABULARIES = (32000, 50257, 128256, 151936)


def softmax(logits: Any, output: Any) -> None:
    """The op in plain PyTorch."""
    output.copy_(torch.softmax(logits, -1))


def argmax(logits: Any, output: Any) -> None:
    """The op in plain PyTorch."""
    output.copy_(torch.argmax(logits, -1))


PYTORCH: dict[str, Callable[..., None]] = {"softmax": softmax, "argmax": argmax}


def make(op: str, rows: int, vocabulary: int, device: str) -> tuple[Any, Any]:
    """Logits and an output."""
    logits = torch.randn(rows, vocabulary, device=device)
    output = torch.empty(rows, dtype=torch.int64, device=device) if op == "argmax" else torch.empty_like(logits)
    return logits, output


def check(op: str, run: Callable[..., None], device: str) -> None:
    """Check that a kernel computes the op: a figure of another computation would mean nothing."""
    logits, output = make(op, 3, 999, device)
    wanted = torch.empty_like(output)
    PYTORCH[op](logits, wanted)
    run(logits, output)
    torch.testing.assert_close(output, wanted)


def table(op: str, device: str) -> list[dict[str, Any]]:
    """One table: rows by shape, columns by provider."""
    names = ["sgljit", "PyTorch"]
    names += ["torch.compile"] if device == "cuda" else []  # on the CPU it would time a C++ compiler's vectors

    def run(rows: int, vocabulary: int, provider: str) -> Figure | float:
        torch.compiler.reset()  # each shape is compiled separately
        kernel = {"sgljit": getattr(ops["sampling"], op), "PyTorch": PYTORCH[op]}.get(provider)
        kernel = torch.compile(PYTORCH[op], dynamic=False) if kernel is None else kernel
        check(op, kernel, device)
        num_bytes = 4 * rows * vocabulary * (2 if op == "softmax" else 1)
        return measure(kernel, lambda: make(op, rows, vocabulary, device), num_bytes=num_bytes, seconds=0.03)

    places = [(rows, vocabulary) for vocabulary in VOCABULARIES for rows in ROWS[device]]
    return sweep(run, ["rows", "vocabulary"], get_benchmark_range(places, places[:1]), names)


def main() -> None:
    """Measure, print the page, and write it."""
    parser = argparse.ArgumentParser(description="Time of softmax and arg-max over a vocabulary")
    parser.add_argument("--device", choices=list(ROWS), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, help="write the page here")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    tables = {op: table(op, arguments.device) for op in PYTORCH}
    note = "float32. Microseconds per call, median; in brackets, the percent of a plain copy that moves as many bytes."
    sys.stdout.write(write_results(arguments.output, "Logits", tables, note=note, device=arguments.device))


if __name__ == "__main__":
    main()
