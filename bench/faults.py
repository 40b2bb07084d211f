"""How many failures of a system call does the cache survive?

Every fault of tests/injection.py: in each scenario, each kind of call below the cache, the runtime directory and
the directory for temporary files fails once, at each of its places and with each class of its errnos. "Right" is the
right result, "said plainly" an error of sgljit's with a remedy. In both cases the next run must be right, no damaged
artifact may be visible, and the next prune must leave nothing of the build behind.

    python bench/faults.py [--workers 2] [--output bench/results/faults.md]

Needs g++, gcc and NVRTC, no GPU.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import injection


def row(name: str, directory: Path) -> dict[str, object]:
    """The figures of one scenario."""
    own = directory / name.replace(", ", "-")
    own.mkdir(mode=0o700)
    with injection.ground(own) as ground:
        tally = injection.campaign(ground, name)
    for failure in tally.failures:
        print(failure, file=sys.stderr, flush=True)
    return {
        "scenario": name,
        "tried": tally.tried,
        "met": tally.fired,
        "right": tally.outcomes["right"],
        "said plainly": tally.outcomes["plain"],
        "failed": tally.outcomes["wrong"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(arguments.workers) as pool:
        rows = list(pool.map(lambda name: row(name, Path(directory)), injection.SCENARIOS))
    sums = {key: sum(int(str(one[key])) for one in rows) for key in rows[0] if key != "scenario"}
    from sgljit_tools.benchmark.results import write_results

    note = (
        f"{len(injection.ERRNOS)} kinds of calls, {sum(map(len, injection.ERRNOS.values()))} classes of their errnos."
    )
    table = [*rows, {"scenario": "all", **sums}]
    print(write_results(arguments.output, "Faults of the file system", {"": table}, note=note, device="cpu"), end="")


if __name__ == "__main__":
    main()
