"""What does a call of an op on a GPU cost beside a raw function, that of SGLang?

rmsnorm of one row of 4096 bfloat16 without gradients, in microseconds of a call from Python, launch included: calls
back to back, until the device has finished, in turns; the best of all turns counts. The op checks its arguments, and
writes in place or to ``out``; a raw function is what C++ exports, called by tvm-ffi.

    python bench/call_gpu.py --peers DIR [--output bench/results/call_gpu.md]

SGLang's kernel comes from ``--peers``, a folder with a ``peers.py`` that offers it. The goal is that the op in place
takes at most 1.05 times SGLang's raw function. Needs a GPU.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from call_cost import in_turns, repeated

from sgljit_norm import rmsnorm
from sgljit_norm.plugin import FAMILY
from sgljit_tools.benchmark import get_benchmark_range, results

LIMIT = 1.05
SGLANG = "SGLang's function"


def until_finished(repeat: Callable[[int], None]) -> Callable[[int], None]:
    """The same calls, and a wait for the device."""

    def run(number: int) -> None:
        repeat(number)
        torch.cuda.synchronize()

    return run


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
    rows = [{"call": name, "us": one / 1e3, "of SGLang's": one / found[SGLANG]} for name, one in found.items()]
    title = "A call on a GPU"
    note = "rmsnorm of one row of 4096 bfloat16; SGLang 0.5.23. See the head of `bench/call_gpu.py`."
    sys.stdout.write(results.write_results(options.output, title, {"": rows}, note=note, device="cuda"))
    return 0 if found["the op, in place"] <= LIMIT * found[SGLANG] else 1


if __name__ == "__main__":
    sys.exit(main())
