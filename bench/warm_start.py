"""How long does a fresh process with a full cache take from `from sgljit_core import ops` to the end of the first call?

PyTorch is loaded before the clock starts. `import tvm_ffi`, which every user of tvm-ffi pays, is timed in the same
process before ours. Byte code is on disk, as an installer leaves it:

    python bench/warm_start.py [--rounds 15] [--output bench/results/warm_start.md]

The goal is at most 60 ms over tvm_ffi's import, on 2 cores. Importing PyTorch leaves a full garbage collection nearly
due, which takes twice as long as all of this: the page says whether one fell into the stages.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from sgljit_tools.benchmark import results
from sgljit_tools.environment import inherited_environment

GOAL = 60.0
STAGES = ("import tvm_ffi", "from sgljit_core import ops", 'ops["norm"]', ".rmsnorm", "first call")
CHILD = """
import gc, json, time
import torch
x, weight = torch.randn(1, 64), torch.ones(64)
full_collections = []
gc.callbacks.append(lambda phase, info: info["generation"] == 2 and full_collections.append(time.perf_counter()))
times = [time.perf_counter()]
import tvm_ffi
times.append(time.perf_counter())
from sgljit_core import ops
times.append(time.perf_counter())
family = ops["norm"]
times.append(time.perf_counter())
op = family.rmsnorm
times.append(time.perf_counter())
op(x, weight)
times.append(time.perf_counter())
spans = [1000 * (end - start) for start, end in zip(times, times[1:])]
print(json.dumps([*spans, 1000 * sum(full_collections[1::2]) - 1000 * sum(full_collections[::2])]))
"""


def measure(cache: Path) -> list[float]:
    """Milliseconds of each stage in one fresh process, and of the full garbage collections in them."""
    environment = inherited_environment(SGLJIT_CACHE_DIR=str(cache))
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=True)
    return [float(milliseconds) for milliseconds in json.loads(done.stdout)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path, help="write the table here as well")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as directory:
        cache = Path(directory, "cache")
        cache.mkdir(mode=0o700)
        for _ in range(2):  # fills the cache, and the answers beside it
            measure(cache)
        rounds = [measure(cache) for _ in range(options.rounds)]

    ours = statistics.median(sum(stages[1:-1]) for stages in rounds)
    rows = [
        {"stage": stage, "ms": f"{statistics.median(stages[i] for stages in rounds):.1f}"}
        for i, stage in enumerate(STAGES)
    ]
    rows.append({"stage": "all but the first line", "ms": f"{ours:.1f}"})
    collected = sum(stages[-1] > 0 for stages in rounds)
    note = (
        f"Fresh processes with torch loaded and a full cache; medians of {options.rounds}. Goal: {GOAL:.0f} ms. A full "
        f"garbage collection, which walks all of PyTorch's objects, fell into {collected} of them."
    )
    sys.stdout.write(results.write_results(options.output, "Warm start", {"": rows}, note=note, device="cpu"))
    return 0 if ours <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
