"""What does a call of an op cost beside the exported C++ function?

rmsnorm of 1 x 64 float32 on the CPU, in nanoseconds: the op, the function that C++ exports with the same arguments, and
``torch.add``, in turns; the best of all turns counts. In grad mode, under ``torch.no_grad`` and under
``torch.inference_mode``, into ``out`` and in place.

    python bench/call_cost.py [--output bench/results/call_cost.md]
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sgljit_core import ops
from sgljit_norm import rmsnorm
from sgljit_norm.plugin import FAMILY
from sgljit_tools.benchmark import results

TURNS, CALLS = 100, 1000
LIMIT = 1.30
MODES: dict[str, Callable[[], Any]] = {
    "grad mode": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


def in_turns(calls: dict[str, Callable[[int], None]]) -> dict[str, float]:
    """Nanoseconds of one call of each: the best of all turns."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(TURNS):
        for name, repeat in calls.items():
            start = time.perf_counter()
            repeat(CALLS)
            best[name] = min(best[name], (time.perf_counter() - start) / CALLS * 1e9)
    return best


def repeated(call: str, **names: Any) -> Callable[[int], None]:
    """A function that evaluates ``call`` so many times, with nothing around it but the loop."""
    arguments = ", ".join(names)
    scope: dict[str, Any] = {}
    exec(f"def make({arguments}):\n def repeat(n):\n  for _ in range(n): {call}\n return repeat", scope)
    return scope["make"](**names)


def measure(mode: str, in_place: bool) -> dict[str, Any]:
    x, weight, out = torch.randn(1, 64), torch.ones(64), torch.empty(1, 64)
    names = {"x": x, "weight": weight, "out": None if in_place else out, "target": out}
    with MODES[mode]():
        rmsnorm(x, weight, out)
        found = in_turns(
            {
                "op": repeated("f(x, weight)" if in_place else "f(x, weight, out)", f=rmsnorm, **names),
                "looked up": repeated('ops["norm"].rmsnorm(x, weight, out)', ops=ops, **names),
                "exported": repeated("f(x, weight, out, 1e-6)", f=FAMILY.host_module().rmsnorm, **names),
                "torch.add": repeated("f(x, x, out=target)", f=torch.add, **names),
            }
        )
    ratio = found["op"] / found["exported"]
    return {"mode": mode, "writes": "input" if in_place else "out", **found, "op / exported": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the page here as well")
    options = parser.parse_args()
    rows = [measure(mode, in_place) for mode in MODES for in_place in (False, True)]
    note = (
        f"Nanoseconds of a call of rmsnorm, 1 x 64 float32 on the CPU: the best of {TURNS} turns of {CALLS} calls. "
        f'"looked up" is `ops["norm"].rmsnorm(...)`. The goal is op / exported <= {LIMIT:.2f}.'
    )
    print(results.write_results(options.output, "Cost of a call", {"": rows}, note=note))


if __name__ == "__main__":
    main()
