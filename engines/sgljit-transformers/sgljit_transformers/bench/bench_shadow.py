"""What does ``SGLJIT_SHADOW=0.001`` cost a model in eager mode?

A thousandth changes a step by less than two runs of it differ. So its parts are measured: by how much a call that is
not compared is slower, which is all but one in a thousand, and what a call takes that is compared.

``python -m sgljit_transformers.bench.bench_shadow --output bench/results/shadow.md``
"""

from __future__ import annotations

import argparse
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import sgljit_transformers
from sgljit_engines import report
from sgljit_tools.benchmark import Figure
from sgljit_tools.benchmark.results import write_results

from .bench_eager import SIZES, TINY, make

SHARE = 0.001
NEVER = 1e-9  # but for the first call

_SIZE = {**SIZES["16 x 2048"], "hidden_size": 1024, "intermediate_size": 3072}
LAYERS = {f"{number} x 1024": {**_SIZE, "num_hidden_layers": number} for number in (2, 4)}

NOTE = """
Qwen3 in float32 with random weights on the CPU, written as layers x hidden size: a token of one user in eager mode.
All times are processor time of one thread, the best of {turns} turns. "alone", "not compared" and "compared" are
microseconds of a norm of q: without `SGLJIT_SHADOW`, and with it for both sorts of calls. "added" is what a share of
0.001 adds to a step: for each of its calls "not compared" less "alone", and a thousandth of "compared". The goal is
less than 0.5 %.
"""


def best(call: Callable[[], object], number: int) -> float:
    """The microseconds of a call in one turn of so many."""
    start = time.process_time_ns()
    for _ in range(number):
        call()
    return (time.process_time_ns() - start) / number / 1000


def shadowed(size: dict[str, int], share: float) -> Any:
    """A model whose calls are compared at a share, or at none."""
    os.environ["SGLJIT_SHADOW"] = str(share)
    model = make(size, "cpu", torch.float32)
    sgljit_transformers.enable(model)
    return model


def row(name: str, size: dict[str, int], turns: int) -> dict[str, str | Figure]:
    """The row of a model."""
    models = {share: shadowed(size, share) for share in (0.0, NEVER, 1.0)}
    norms = {share: model.model.layers[0].self_attn.q_norm for share, model in models.items()}
    ids = torch.zeros(1, 1, dtype=torch.int64)
    heads = torch.randn(1, 1, models[0.0].config.num_attention_heads, models[0.0].config.head_dim)
    before = sum(use.calls for use in report())
    models[0.0](ids, use_cache=False)
    calls = sum(use.calls for use in report()) - before
    step, times = float("inf"), dict.fromkeys(norms, float("inf"))
    for _ in range(turns):
        step = min(step, best(lambda: models[0.0](ids, use_cache=False), 2))
        for share, norm in norms.items():
            times[share] = min(times[share], best(functools.partial(norm, heads), 20 if share == 1 else 500))
    alone, quiet, compared = times.values()
    added = calls * (quiet - alone + SHARE * compared)
    return {
        "model": name,
        "step, ms": f"{step / 1000:.2f}",
        "calls": str(calls),
        "alone": f"{alone:.2f}",
        "not compared": f"{quiet:.2f}",
        "compared": f"{compared:.1f}",
        "added": f"{100 * added / step:.3f} %",
    }


def main(arguments: list[str] | None = None) -> str:
    """The page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="one tiny model, to see that it runs")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--output", type=Path, help="the page's file")
    options = parser.parse_args(arguments)
    sizes = TINY if options.tiny else LAYERS
    torch.set_num_threads(1)
    with torch.no_grad():
        rows = [row(name, size, options.turns) for name, size in sizes.items()]
    page = write_results(options.output, "Shadow", {"": rows}, note=NOTE.format(turns=options.turns), device="cpu")
    print(page)
    return page


if __name__ == "__main__":
    main()
