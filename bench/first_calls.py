"""How long does a fresh process without a compiler take to the end of its first call, by what a wheel carries?

`make dist` leaves the wheels of all distributions, which go into an environment of their own. PyTorch and the arguments
of the call, a sample of the family, are loaded before the clock starts, and the full garbage collection that is due
after the import of PyTorch is done. Each process has an empty cache, and its result is compared with the reference's:

    make dist && python bench/first_calls.py [--dist dist] [--rounds 10] [--output bench/results/first_calls.md]

The goal is 0.2 s. With `--device cuda` PyTorch has used the GPU before the clock starts, and NVRTC compiles the kernel,
which no wheel carries; the goal is 0.3 s. The wheels of the families, the core and the tools go into a directory that
comes first on the path of this Python, which must have what they require:

    python bench/first_calls.py --device cuda --families sgljit-norm sgljit-activation --dist dist

The families take turns, and a first round, which brings the files into memory, does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from sgljit_tools.benchmark import results

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import isolated  # noqa: E402

GOALS = {"cpu": 0.2, "cuda": 0.3}
FAMILIES = [name for name, place in isolated.PROJECTS.items() if place.parts[:1] == ("plugins",)]
# The first op that has samples on the device, the arguments of the first one without an empty tensor, for which no op
# computes anything, and what the reference makes of them.
SAMPLE = """
import sys, torch
from sgljit_core.families import loading
from sgljit_tools.testing.subject import NotApplicable, Subject
family, device, file = sys.argv[1:]
for name, op in loading.load(family).declared().items():
    try:
        subject = Subject(op, torch.device(device))
        arguments = next(one for one in subject.samples if all(map(torch.numel, filter(torch.is_tensor, one.values()))))
        torch.save((arguments, subject.expected(arguments)), file)
    except NotApplicable:
        continue
    print(name)
    break
"""
CALL = """
import gc, json, sys, time, torch
family, op, file = sys.argv[1:]
arguments, wanted = torch.load(file, weights_only=False)
on_cuda = torch.cuda.is_available()
finish = torch.cuda.synchronize if on_cuda else lambda: None
finish()
gc.collect()
wall, cpu = time.perf_counter(), time.process_time()
from sgljit_core import ops
result = getattr(ops[family], op)(**arguments)
finish()
spent = time.perf_counter() - wall, time.process_time() - cpu
from sgljit_core import stats
from sgljit_tools.testing.subject import differing
assert stats().hits.keys() == {"carried"} and stats().builds.keys() == ({"compiled"} if on_cuda else set()), stats()
assert not (text := differing(arguments, result, wanted)), text
print(json.dumps(spent))
"""


class Installed(NamedTuple):
    """A Python that has the wheels, the environment variables of its processes, and an empty directory."""

    python: Path
    variables: dict[str, str]
    home: Path


def in_an_environment(dist: Path, place: Path) -> Installed:
    """Install everything that `make dist` left."""
    wheels = [isolated.Built(ROOT, file, file) for file in dist.glob("*.whl")]
    environment = isolated.Environment(place / "environment", wheels)
    environment.pip("install", "--no-index", "--find-links", dist, *isolated.PROJECTS)
    return Installed(environment.python, {**environment.variables, "CUDA_VISIBLE_DEVICES": ""}, environment.home)


def beside_this_python(dist: Path, place: Path, families: list[str]) -> Installed:
    """Install families before all else that this Python has, but for what is no wheel of `make dist`."""
    home, site = place / "home", place / "site"
    home.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--find-links", dist]
    isolated.run(*pip, "--target", site, "sgljit-core", "sgljit-tools", "sgljit-engines", *families, cwd=home)
    path = [Path(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    kept = [one for one in path if not (one.is_relative_to(ROOT) or [*one.glob("sgljit_*.dist-info")])]
    own = ("PYTHON", "SGLJIT_")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return Installed(Path(sys.executable), {**variables, "PYTHONPATH": os.pathsep.join(map(str, [site, *kept]))}, home)


def first_call(installed: Installed, device: str, *arguments: str) -> tuple[float, float]:
    """Seconds and CPU seconds of the first call of a process with nothing on its PATH."""
    with tempfile.TemporaryDirectory() as cache:
        variables = {**installed.variables, "PATH": str(installed.home), "SGLJIT_CACHE_DIR": cache}
        variables |= {"SGLJIT_JIT": "error"} if device == "cpu" else {}
        command = [installed.python, "-c", CALL, *arguments]
        wall, cpu = json.loads(isolated.run(*command, cwd=installed.home, env=variables).splitlines()[-1])
    return wall, cpu


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="what `make dist` left")
    parser.add_argument("--device", choices=GOALS, default="cpu")
    parser.add_argument("--families", nargs="+", metavar="NAME", default=FAMILIES, help="such as sgljit-norm")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--output", type=Path, help="write the page here")
    options = parser.parse_args()
    dist, device = options.dist.absolute(), options.device
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        if device == "cpu":
            installed = in_an_environment(dist, place)
        else:
            installed = beside_this_python(dist, place, options.families)
        calls = {}
        for family in (family.removeprefix("sgljit-").replace("-", "_") for family in options.families):
            file = str(place / f"{family}.pt")
            command = [installed.python, "-c", SAMPLE, family, device, file]
            op = isolated.run(*command, cwd=installed.home, env=installed.variables).split()[-1]
            calls[family] = (family, op, file)
        for call in calls.values():
            first_call(installed, device, *call)
        rounds = [
            {family: first_call(installed, device, *call) for family, call in calls.items()}
            for _ in range(options.rounds)
        ]
    rows, slow, goal = [], 0, GOALS[device]
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
        rows[-1] |= {} if device == "cpu" else {"goal, ms": f"{1000 * goal:.0f}"}
        slow += statistics.median(cpus if device == "cpu" else walls) > goal
    measured = (
        "by their CPU time. The wall time is that of a machine whose cores other programs may use, too."
        if device == "cpu"
        else "by their wall time. PyTorch had used the GPU before; NVRTC compiled the kernel, and the wheel carried "
        "the host part."
    )
    note = (
        "Fresh processes with PyTorch loaded and garbage collected, an empty cache and no compiler; medians of "
        f"{options.rounds}, and the least. From `from sgljit_core import ops` to the end of the call. Goal: "
        f"{1000 * goal:.0f} ms, which {slow or 'none'} of {len(rows)} miss {measured}"
    )
    title = "First calls without a compiler" if device == "cpu" else "First calls on a GPU, with NVRTC alone"
    sys.stdout.write(results.write_results(options.output, title, {"": rows}, note=note, device=device))
    return bool(slow)


if __name__ == "__main__":
    sys.exit(main())
