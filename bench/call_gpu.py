"""What does a call of an op on a GPU cost beside a raw function, that of SGLang?

rmsnorm of one row of 4096 bfloat16 without gradients, in microseconds of a call from Python, launch included: calls
back to back, until the device has finished, in turns; the best of all turns counts. The op checks its arguments, and
writes in place or to ``out``; a raw function is what C++ exports, called by tvm-ffi.

Then a node of a graph of torch.compile beside a kernel of Triton, which inductor launches: an op by PyTorch's
dispatcher, and one whose function the code of backend="sgljit" calls. A node's time is the difference between two
graphs, by their numbers of nodes. The goal is that such a function takes at most the time of Triton's launch.

    python bench/call_gpu.py --peers DIR [--output bench/results/call_gpu.md]

SGLang's kernel comes from ``--peers``, a folder with a ``peers.py`` that offers it. The goal is that the op in place
takes at most 1.05 times SGLang's raw function. The status is 1 where a goal is missed. Needs a GPU.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from call_cost import FEW, MANY, graph, in_turns, repeated

from sgljit_core import ops
from sgljit_norm import rmsnorm
from sgljit_norm.plugin import FAMILY
from sgljit_tools.benchmark import get_benchmark_range, results

LIMIT = 1.05
SGLANG = "SGLang's function"
TRITON, FUNCTION = "a kernel of Triton", 'an op by its function, backend="sgljit"'


def until_finished(repeat: Callable[[int], None]) -> Callable[[int], None]:
    """The same calls, and a wait for the device."""

    def run(number: int) -> None:
        repeat(number)
        torch.cuda.synchronize()

    return run


@triton.jit
def copied(x, out, size: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton reads it
    """One row."""
    places = tl.arange(0, size)
    tl.store(out + places, tl.load(x + places))


def overload(name: str) -> object:
    """An op of the family as a graph calls it."""
    getattr(ops["norm"], name)  # registers it
    packet = getattr(torch.ops.sgljit_norm, name)
    return getattr(packet, packet.overloads()[0])


def of_nodes() -> list[dict[str, object]]:
    """A row for each kind of node."""
    fused, direct = overload("fused_add_rmsnorm"), {"backend": "sgljit", "options": {"chains": "on"}}
    calls: dict[str, tuple[object, str, dict[str, Any]]] = {
        TRITON: (copied, "op[(1,)](x, out, size=4096)", {}),
        "an op by the dispatcher": (overload("rmsnorm"), "op(x, weight, out, 1e-6)", {}),
        FUNCTION: (fused, "op(out, x, weight, 1e-6)", direct),
    }
    x, out = (torch.zeros(1, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    turns = {}
    for name, (op, call, options) in calls.items():
        for nodes in (FEW, MANY):
            run = repeated("f(x, weight, out)", f=graph(op, nodes, call, **options), x=x, weight=x[0] + 1, out=out)
            run(2)
            turns[name, nodes] = until_finished(run)
    found = in_turns(turns, 10)
    each = {name: (found[name, MANY] - found[name, FEW]) / (MANY - FEW) / 1e3 for name in calls}
    return [{"node": name, "us": us, "of Triton's": us / each[TRITON]} for name, us in each.items()]


def main() -> int:
    """Measure, print the page, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, required=True, help="a folder with peers.py")
    parser.add_argument("--output", type=Path, help="write the page here")
    options = parser.parse_args()
    sys.path.insert(0, str(options.peers))
    theirs = importlib.import_module("peers").Peers(options.peers.resolve()).rmsnorm(4096)

    x = torch.randn(1, 4096, device="cuda", dtype=torch.bfloat16)
    weight = torch.ones_like(x[0])
    wanted = torch.nn.functional.rms_norm(x, (4096,), weight, 1e-6)
    calls = {
        SGLANG: ("f(x, weight, out, 1e-6)", theirs),
        "our function": ("f(x, weight, out, 1e-6)", FAMILY.host_module().rmsnorm),
        "the op, to `out`": ("f(x, weight, out)", rmsnorm),
        "the op, in place": ("f(x, weight)", rmsnorm),
        "F.rms_norm": ("f(x, (4096,), weight, 1e-6)", torch.nn.functional.rms_norm),
        "torch.add": ("f(x, x, out=out)", torch.add),
    }
    with torch.no_grad():
        turns = {}
        for name, (call, function) in calls.items():
            own, out = x.clone(), torch.full_like(x, torch.nan)
            repeat = repeated(call, f=function, x=own, weight=weight, out=out)
            repeat(1)
            if name not in ("F.rms_norm", "torch.add"):
                torch.testing.assert_close(own if "place" in name else out, wanted)
            turns[name] = until_finished(repeat)
        found = in_turns(turns, get_benchmark_range([500], [5])[0])
        nodes = of_nodes()
    rows = [{"call": name, "us": one / 1e3, "of SGLang's": one / found[SGLANG]} for name, one in found.items()]
    title = "A call on a GPU"
    note = "rmsnorm of one row of 4096 bfloat16; SGLang 0.5.23. See the head of `bench/call_gpu.py`."
    sys.stdout.write(
        results.write_results(options.output, title, {"": rows, "Nodes of a graph": nodes}, note=note, device="cuda")
    )
    ratios = {row["node"]: row["of Triton's"] for row in nodes}
    return int(found["the op, in place"] > LIMIT * found[SGLANG] or ratios[FUNCTION] > 1)


if __name__ == "__main__":
    sys.exit(main())
