"""What does a call of an op cost beside the exported C++ function?

rmsnorm of 1 x 64 float32 on the CPU, in nanoseconds: the op, the function that C++ exports with the same arguments, and
``torch.add``, in turns; the best of all turns counts. In grad mode, under ``torch.no_grad`` and under
``torch.inference_mode``, into ``out`` and in place.

Then the op by its name in ``torch.ops``, and as a node of a graph of torch.compile, beside ops of the same schema that
do nothing: one in C++, registered with torch's stable ABI, and one in Python. A node's time is the difference between
two graphs, by their numbers of nodes. The status is 1 where the goal of the page is missed.

    python bench/call_cost.py [--output bench/results/call_cost.md]
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sgljit_core import load_jit, ops
from sgljit_norm import rmsnorm
from sgljit_norm.plugin import FAMILY
from sgljit_tools.benchmark import results

TURNS, CALLS = 100, 1000
LIMIT = 1.30
FEW, MANY = 2, 42  # nodes of a graph
MODES: dict[str, Callable[[], Any]] = {
    "grad mode": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


def in_turns(calls: dict[str, Callable[[int], None]], number: int = CALLS) -> dict[str, float]:
    """Nanoseconds of one call of each: the best of all turns, of a number of calls each."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(TURNS):
        for name, repeat in calls.items():
            start = time.perf_counter()
            repeat(number)
            best[name] = min(best[name], (time.perf_counter() - start) / number * 1e9)
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


def empty_ops() -> tuple[torch.library.Library, dict[str, Any]]:
    """Ops with the schema of rmsnorm that do nothing, and what keeps them."""
    library = torch.library.Library("sgljit_call_cost", "FRAGMENT")
    for name in ("native", "python"):
        library.define(f"{name}(Tensor input, Tensor weight, Tensor(a!) out, float eps=1e-06) -> ()")
        library.impl(name, lambda *_: None, "Meta")
    library.impl("python", lambda *_: None, "CompositeExplicitAutograd")
    source = Path(__file__).with_name("empty_op.cpp")
    load_jit("empty_op", cpp_files=[source], cpp_wrappers=[("implement", "implement")]).implement(library.ns, "native")
    packets = torch.ops.sgljit_call_cost
    return library, {"native": packets.native.default, "python": packets.python.default}


def graph(op: Any, nodes: int, call: str = "op(x, weight, out, 1e-6)", **options: Any) -> Callable[..., None]:
    """A compiled function of so many calls; each has code of its own, as torch.compile keeps a few graphs for one."""
    scope: dict[str, Any] = {"op": op}
    exec("def f(x, weight, out):\n" + f" {call}\n" * nodes, scope)
    return torch.compile(scope["f"], fullgraph=True, **options)


def by_name(mode: str, empty: dict[str, Any]) -> dict[str, Any]:
    x, weight, out = torch.randn(1, 64), torch.ones(64), torch.empty(1, 64)
    names = {"x": x, "weight": weight, "out": out}
    (overload,) = torch.ops.sgljit_norm.rmsnorm.overloads()
    called = {"op": getattr(torch.ops.sgljit_norm.rmsnorm, overload), **empty}
    with MODES[mode]():
        exported = {"exported": repeated("f(x, weight, out, 1e-6)", f=FAMILY.host_module().rmsnorm, **names)}
        eager = in_turns({k: repeated("f(x, weight, out, 1e-6)", f=f, **names) for k, f in called.items()} | exported)
        graphs = {
            (k, n): repeated("f(x, weight, out)", f=graph(f, n), **names)
            for k, f in called.items()
            for n in (FEW, MANY)
        }
        for run in graphs.values():
            run(2)
        whole = in_turns(graphs, 10)
    nodes = {f"{k} in a graph": (whole[k, MANY] - whole[k, FEW]) / (MANY - FEW) for k in called}
    ratio = (nodes["op in a graph"] - eager["exported"]) / nodes["native in a graph"]
    return {"mode": mode, **eager, **nodes, "(op in a graph - exported) / native in a graph": ratio}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the page here as well")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(mode, in_place) for mode in MODES for in_place in (False, True)]
    library, empty = empty_ops()
    named = [by_name(mode, empty) for mode in MODES]
    note = (
        f"Nanoseconds of a call of rmsnorm, 1 x 64 float32 on the CPU: the best of {TURNS} turns of {CALLS} calls. "
        f'"looked up" is `ops["norm"].rmsnorm(...)`. The goal is op / exported <= {LIMIT:.2f} '
        "where no gradients are wanted: in grad mode an op asks each tensor for them, too.\n\n"
        f"In torch.ops: the op by its name, and as a node of a graph of torch.compile. {library.ns} has ops of the "
        f'same schema that do nothing, "native" in C++ and "python" in Python.'
    )
    tables = {"": rows, "In torch.ops": named}
    print(results.write_results(options.output, "Cost of a call", tables, note=note))
    return any(row["op / exported"] > LIMIT for row in rows if row["mode"] != "grad mode")


if __name__ == "__main__":
    sys.exit(main())
