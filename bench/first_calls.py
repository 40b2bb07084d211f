"""How long does a fresh process without a compiler take to the end of its first CPU call, by what a wheel carries?

`make dist` leaves the wheels of all distributions, which go into an environment of their own. PyTorch and the arguments
of the call, a sample of the family, are loaded before the clock starts. Each process has an empty cache:

    make dist && python bench/first_calls.py [--dist dist] [--rounds 10] [--output bench/results/first_calls.md]

The goal is 0.2 s. The families take turns, and a first round, which brings the files into memory, does not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from sgljit_tools.benchmark import results

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import isolated  # noqa: E402

GOAL = 0.2
FAMILIES = [name for name, place in isolated.PROJECTS.items() if place.parts[:1] == ("plugins",)]
# The first op that has samples on the CPU, and the arguments of the first one.
SAMPLE = """
import sys, torch
from sgljit_core.families import loading
from sgljit_tools.testing.subject import NotApplicable, Subject
for name, op in loading.load(sys.argv[1]).declared().items():
    try:
        torch.save(Subject(op, torch.device("cpu")).samples[0], sys.argv[2])
    except NotApplicable:
        continue
    print(name)
    break
"""
CALL = """
import json, sys, time, torch
family, op, file = sys.argv[1:]
arguments = torch.load(file, weights_only=False)
wall, cpu = time.perf_counter(), time.process_time()
from sgljit_core import ops
getattr(ops[family], op)(**arguments)
spent = time.perf_counter() - wall, time.process_time() - cpu
from sgljit_core import stats
assert stats().hits.keys() == {"carried"} and not stats().builds, stats()
print(json.dumps(spent))
"""


def installed(dist: Path, place: Path) -> isolated.Environment:
    """An environment with everything that `make dist` left."""
    wheels = [isolated.Built(ROOT, file, file) for file in dist.glob("*.whl")]
    environment = isolated.Environment(place / "environment", wheels)
    environment.pip("install", "--no-index", "--find-links", dist, *isolated.PROJECTS)
    return environment


def first_call(environment: isolated.Environment, *arguments: str) -> tuple[float, float]:
    """Seconds and CPU seconds of the first call of a process whose PATH has no compiler."""
    with tempfile.TemporaryDirectory() as cache:
        variables = {**environment.variables, "PATH": str(environment.bin), "SGLJIT_JIT": "error"}
        variables |= {"SGLJIT_CACHE_DIR": cache, "CUDA_VISIBLE_DEVICES": ""}
        command = [environment.python, "-c", CALL, *arguments]
        wall, cpu = json.loads(isolated.run(*command, cwd=environment.home, env=variables).splitlines()[-1])
    return wall, cpu


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="what `make dist` left")
    parser.add_argument("--families", nargs="+", metavar="NAME", default=FAMILIES, help="such as sgljit-norm")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--output", type=Path, help="write the page here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        environment = installed(options.dist.absolute(), Path(name))
        calls = {}
        for family in (family.removeprefix("sgljit-").replace("-", "_") for family in options.families):
            file = str(Path(name, f"{family}.pt"))
            op = environment.run(environment.python, "-c", SAMPLE, family, file).split()[-1]
            calls[family] = (family, op, file)
        for call in calls.values():
            first_call(environment, *call)
        rounds = [
            {family: first_call(environment, *call) for family, call in calls.items()} for _ in range(options.rounds)
        ]
    rows, slow = [], 0
    for family, (_, op, _) in calls.items():
        walls, cpus = zip(*(times[family] for times in rounds), strict=True)
        rows.append(
            {
                "family": family,
                "op": op,
                "wall, ms": f"{1000 * statistics.median(walls):.0f}",
                "least": f"{1000 * min(walls):.0f}",
                "CPU, ms": f"{1000 * statistics.median(cpus):.0f}",
            }
        )
        slow += statistics.median(cpus) > GOAL
    note = (
        f"Fresh processes with PyTorch loaded, an empty cache and no compiler; medians of {options.rounds}, and the "
        f"least. From `from sgljit_core import ops` to the end of the call. Goal: {1000 * GOAL:.0f} ms, which "
        f"{slow or 'none'} of {len(rows)} miss by their CPU time. The wall time is that of a machine whose cores other "
        f"programs may use, too."
    )
    title = "First calls without a compiler"
    sys.stdout.write(results.write_results(options.output, title, {"": rows}, note=note, device="cpu"))
    return bool(slow)


if __name__ == "__main__":
    sys.exit(main())
