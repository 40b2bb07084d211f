"""How long do N machines with empty disks take until they have all variants of a model, from one web server?

The variants are what `sgljit prepare` builds for Qwen3 30B-A3B on sm_90a: modules for the host, and kernels. Each
machine is a process with a cache of its own, forked from one that has imported PyTorch: measured is the time from the
common start until each module is loaded, and each kernel is verified and read. The server is a process too. Nobody has
a compiler.

    python bench/remote_start.py [--processes 1 8 50 200] [--output bench/results/remote_start.md]

N processes share the cores of this machine with the server, where N machines would not. So a run is compared with one
alone on the same share of the machine: the CPU seconds of a process of this run and of the server for it, times N,
divided by the cores, without what other programs used of them in the meantime (/proc/stat). One that takes longer has
waited for something else, too. The goal is that the slowest of 200 is ready within 1.5 times that, or 1.5 times the
time of one alone where that is longer, with two requests a process and no compile.

The second table is about one artifact, a small module: a hit of the remote over one of the local cache, in fresh
processes with byte code on disk as an installer leaves it. Such a process has PyTorch and the core imported, has had a
hit of its local cache, and its garbage was collected. Some have looked up an op half a second before, as an engine has
that then loads a model. One that uses load_jit alone looks up none, and lists the installed plugins at its first miss.
The goal is 15 ms, which a later one must meet; the first ones are stated. Needs a host compiler and NVRTC, and no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import os
import pickle
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

MODEL = {  # Qwen3 30B-A3B
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "dtype": "bfloat16",
}
ARCH = "9.0"
LATER = 3  # artifacts after the first, in the second table
GOAL, GOAL_OF_ONE, MOST_REQUESTS = 1.5, 15.0, 2.0
SECONDS = "60"
SOURCE = """
#include <sgl_kernel/tensor.h>
template <int kAdded>
void add(host::TensorView x, host::TensorView y) {{
  auto N = host::SymbolicSize{{"length"}};
  host::TensorMatcher({{N}}).with_dtype<float>().with_device<kDLCPU>().verify(x).verify(y);
  const auto* from = static_cast<const float*>(x.data_ptr());
  auto* to = static_cast<float*>(y.data_ptr());
  for (int64_t i = 0; i < N.unwrap(); ++i) to[i] = from[i] + kAdded;
}}
"""


def load(number: int) -> Any:
    """One small module."""
    from sgljit_core import load_jit

    wrappers = [("add", f"add<{number}>")]
    return load_jit("add", str(number), cpp_sources=SOURCE.format(), cpp_wrappers=wrappers)


def ask_for(config: Path, file: Path) -> None:
    """In a process of its own, with the model's host parts in its cache: write down what the model asks for."""
    from sgljit_core.plugins import discovery
    from sgljit_engines.adapter import engine_ops
    from sgljit_engines.shapes import read_config
    from sgljit_tools.recording.recorder import record

    shape, ops = read_config(config, 1, None), engine_ops(None)
    wanted = record(discovery.installed(), cuda_arch=ARCH, on_cpu=False, ops=ops, model=shape).wanted
    file.write_bytes(pickle.dumps([one._replace(root=None) for one in wanted]))


def fleet(count: int, directory: Path, file: Path) -> None:
    """In a process of its own: fork ``count`` processes, start them together, print what each says."""
    import torch  # noqa: F401 - a family would import it, and the next; not part of the measured time
    import tvm_ffi  # noqa: F401

    import sgljit_core
    from sgljit_core.jit import cubins, kernels  # noqa: F401 - imported before the fork

    wanted = pickle.loads(file.read_bytes())
    start_reader, start_writer = os.pipe()
    reader, writer = os.pipe()
    children = []
    for number in range(count):
        if child := os.fork():
            children.append(child)
            continue
        os.close(start_writer)
        os.environ["SGLJIT_CACHE_DIR"] = str(directory / f"cache-{number}")
        os.read(start_reader, 1)  # ends when the parent closes its end
        begin, before = time.perf_counter(), _cpu(resource.RUSAGE_SELF)
        for one in wanted:
            kernels.build(one)
        seconds, cpu = time.perf_counter() - begin, _cpu(resource.RUSAGE_SELF) - before
        stats = sgljit_core.stats()
        said = {"seconds": seconds, "cpu": cpu, "builds": stats.builds, "hits": stats.hits}
        os.write(writer, f"{json.dumps(said)}\n".encode())  # shorter than what a pipe takes at once
        os._exit(0)
    os.close(writer)
    time.sleep(0.5)
    begin, busy = time.perf_counter(), _busy()
    os.close(start_reader)
    os.close(start_writer)
    with os.fdopen(reader) as lines:
        sys.stdout.write(lines.read())
    print(json.dumps({"wall": time.perf_counter() - begin, "busy": _busy() - busy}))
    failed = sum(os.waitpid(child, 0)[1] != 0 for child in children)
    sys.exit(f"{failed} processes failed" if failed else 0)


def _cpu(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def _busy() -> float:
    """The CPU seconds that all programs of this machine have used."""
    user, nice, system, _, _, irq, softirq, steal, *_ = map(int, Path("/proc/stat").read_text().split()[1:11])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 1024


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        print(self.requestline, file=sys.stderr, flush=True)


def serve(directory: Path) -> None:
    """In a process of its own: serve a directory, and write a line for each request."""
    handler = lambda *arguments: _Handler(*arguments, directory=str(directory))  # noqa: E731
    with _Server(("127.0.0.1", 0), handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


@contextlib.contextmanager
def serving(store: Path, log: Path) -> Iterator[tuple[str, int]]:
    """The URL of a server of a directory, and its process, while the block runs."""
    with log.open("w") as lines:
        command = [sys.executable, __file__, "--serve", str(store)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=lines, text=True)
        try:
            assert server.stdout
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}", server.pid
        finally:
            server.kill()
            server.communicate()


def cpu_of(process: int) -> float:
    """The CPU seconds that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def environment(**settings: str) -> dict[str, str]:
    """The variables of a process, without those that the caller has set for sgljit or for byte code."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith("SGLJIT_") and n != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "no_proxy": "127.0.0.1", **settings}


class Filled(NamedTuple):
    """A store, the settings of who reads it, the file of what the model asks for, and how many that are."""

    store: Path
    settings: dict[str, str]
    wanted: Path
    variants: int


def fill(directory: Path) -> Filled:
    """Build what the model asks for, and some small modules, and push both signed, the model's as an archive."""
    from sgljit_remote import signing

    store, trusted, model = (directory / name for name in ("store", "trusted", "model"))
    for place in (store, model):
        place.mkdir()
    trusted.mkdir(mode=0o755)
    (model / "config.json").write_text(json.dumps(MODEL))
    signing.new_key(directory / "own").rename(trusted / "own.pub")
    variables = environment(
        SGLJIT_CACHE_DIR=str(directory / "built"),
        SGLJIT_REMOTE=f"file://{store}",
        SGLJIT_SIGNING_KEY=str(directory / "own"),
    )

    def run(*command: str, **variable: str) -> None:
        here, out = Path(__file__).parent, subprocess.DEVNULL
        subprocess.run([sys.executable, *command], env=variables | variable, cwd=here, check=True, stdout=out)

    run("-m", "sgljit_core", "prepare", "--model", str(model), "--cuda-arch", ARCH, "--push", "qwen3")
    wanted = directory / "wanted"
    run(__file__, "--ask-for", str(model), str(wanted))
    small = str(directory / "small")
    run("-c", f"import remote_start\nfor n in range({LATER + 2}): remote_start.load(n)", SGLJIT_CACHE_DIR=small)
    run("-m", "sgljit_remote", "push", SGLJIT_CACHE_DIR=small)
    count = len(pickle.loads(wanted.read_bytes()))
    return Filled(store, {"SGLJIT_TRUSTED_KEYS": str(trusted)}, wanted, count)


def start(count: int, filled: Filled, directory: Path) -> dict[str, Any]:
    """Start so many processes; their times, the requests and the compiles."""
    place, log = directory / f"fleet-{count}", directory / "requests"
    place.mkdir()
    with serving(filled.store, log) as (url, server):
        before = cpu_of(server)
        # So many processes on so few cores may keep the server from answering for longer than the usual time-out.
        variables = environment(
            **filled.settings, SGLJIT_REMOTE=url, SGLJIT_REMOTE_TIMEOUT=SECONDS, SGLJIT_JIT="error", PATH=""
        )
        command = [sys.executable, __file__, "--fleet", str(count), str(place), str(filled.wanted)]
        done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True)
        served = cpu_of(server) - before
        requests = log.read_text().splitlines()
    shutil.rmtree(place)
    *said, all_of_it = [json.loads(line) for line in done.stdout.splitlines()]
    ours = sum(one["cpu"] for one in said) + served
    return {
        "processes": count,
        "seconds": sorted(one["seconds"] for one in said),
        "cpu": ours / count,
        "cores": len(os.sched_getaffinity(0)) - max(0.0, all_of_it["busy"] - ours) / all_of_it["wall"],
        "requests": len(requests) / count,
        "compiles": sum(sum(one["builds"].values()) for one in said),
        "loaded": sum(sum(one["hits"].values()) for one in said) / count,
    }


ONE = """
import gc, json, sys, time
import torch, tvm_ffi
import remote_start
from sgljit_core import load_jit, ops
if sys.argv[1] != "none":
    ops["norm"].rmsnorm
if sys.argv[1] == "before":
    time.sleep(0.5)
remote_start.load(remote_start.LATER + 1)  # a local hit
if sys.argv[1] == "seed":
    sys.exit()
gc.collect()  # after the import of PyTorch one is due
times = [(time.perf_counter(), time.process_time())]
for number in range(1 + remote_start.LATER):
    remote_start.load(number)
    times.append((time.perf_counter(), time.process_time()))
print(json.dumps([[1000 * (b - a) for a, b in zip(*pair)] for pair in zip(times, times[1:])]))
"""
# Its row, by the state of a process.
BEFORE = {
    "before": "the first of a process that looked up an op half a second before",
    "now": "the first of a process that has just looked up an op",
    "none": "the first of a process that looked up none",
}


def one_hit(rounds: int, filled: Filled, directory: Path) -> list[dict[str, Any]]:
    """A row for the first and for a later artifact, of the remote without archives and of the local cache."""
    single = directory / "single"
    shutil.copytree(filled.store, single)
    (single / "sgljit-1/index.json").unlink()
    found: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    with serving(single, directory / "requests-single") as (url, _):

        def run(how: str, cache: Path) -> str:
            variables = environment(**filled.settings, SGLJIT_REMOTE=url, SGLJIT_CACHE_DIR=str(cache))
            command, here = [sys.executable, "-c", ONE, how], Path(__file__).parent
            return subprocess.run(
                command, env=variables, cwd=here, stdout=subprocess.PIPE, text=True, check=True
            ).stdout

        run("seed", directory / "seed")
        for number in range(rounds + 1):
            for how in BEFORE:
                cache = directory / f"one-{number}-{how}"
                shutil.copytree(directory / "seed", cache)
                for place in ("remote", "local"):
                    first, *later = json.loads(run(how, cache))
                    if not number:  # the first round writes the byte code
                        continue
                    found.setdefault((place, how), []).append(tuple(first))
                    if how == "before":
                        middle = tuple(map(statistics.median, zip(*later, strict=True)))
                        found.setdefault((place, "later"), []).append(middle)
    rows = []
    for which, name in {"later": "a later one", **BEFORE}.items():
        remote, local = (
            [*map(statistics.median, zip(*found[place, which], strict=True))] for place in ("remote", "local")
        )
        rows.append(
            {
                "artifact": name,
                "remote, ms": f"{remote[0]:.1f}",
                "local cache, ms": f"{local[0]:.1f}",
                "over it, ms": f"{remote[0] - local[0]:.1f}",
                "CPU ms over it": f"{remote[1] - local[1]:.1f}",
                "least over it, ms": f"{min(found['remote', which])[0] - min(found['local', which])[0]:.1f}",
            }
        )
    return rows


def quantile(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def rows_of(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each number of processes."""
    alone = runs[0]
    rows = []
    for run in runs:
        seconds = run["seconds"]
        share = max(alone["seconds"][-1], run["cpu"] * run["processes"] / run["cores"])
        rows.append(
            {
                "processes": run["processes"],
                "p50, s": f"{quantile(seconds, 0.5):.2f}",
                "p99, s": f"{quantile(seconds, 0.99):.2f}",
                "max, s": f"{seconds[-1]:.2f}",
                "one alone on this share, s": f"{share:.2f}",
                "max / share": f"{seconds[-1] / share:.2f}",
                "cores it had": f"{run['cores']:.2f}",
                "CPU s a process": f"{run['cpu']:.3f}",
                "requests a process": f"{run['requests']:.2f}",
                "compiles": run["compiles"],
            }
        )
    return rows


def missed(table: Sequence[dict[str, Any]], ones: Sequence[dict[str, Any]]) -> list[str]:
    """The goals that both tables miss."""
    goals = {
        f"the slowest is ready within {GOAL} times its share": float(table[-1]["max / share"]) <= GOAL,
        f"a process makes {MOST_REQUESTS:.0f} requests": all(
            float(row["requests a process"]) <= MOST_REQUESTS for row in table
        ),
        "nobody compiles": not any(row["compiles"] for row in table),
        f"a later artifact takes {GOAL_OF_ONE:.0f} ms over a local hit": float(ones[0]["over it, ms"]) <= GOAL_OF_ONE,
    }
    return [goal for goal, is_met in goals.items() if not is_met]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 8, 50, 200])
    parser.add_argument("--rounds", type=int, default=15, help="of the second table")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"), help="where the caches are: in memory")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--fleet", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--ask-for", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fleet:
        fleet(int(options.fleet[0]), Path(options.fleet[1]), Path(options.fleet[2]))
    if options.ask_for:
        ask_for(*options.ask_for)
        return 0
    if options.serve:
        serve(options.serve)
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = Path(name)
        filled = fill(directory)
        size = (filled.store / "sgljit-1/archives/qwen3.zip").stat().st_size
        ones = one_hit(options.rounds, filled, directory)  # before 200 processes have heated the machine
        counts = [1, *(count for count in options.processes if count > 1)]
        start(1, filled, directory)  # writes the byte code
        runs = [start(count, filled, directory) for count in counts]

    from sgljit_tools.benchmark import results

    table = rows_of(runs)
    assert all(run["loaded"] == filled.variants for run in runs), runs
    plots = {}
    if options.output:
        picture = options.output.with_suffix(".svg")
        lines = ["p50, s", "max, s", "one alone on this share, s"]
        numbers = [{**row, **{name: float(row[name]) for name in lines}} for row in table]
        if results.write_plot(picture, numbers, lines, place=lambda row: str(row["processes"]), ylabel="seconds"):
            plots = {"Seconds until all variants are loaded, by the number of processes": Path(picture.name)}
    note = (
        f"{filled.variants} variants of Qwen3 30B-A3B for sm_90a in an archive of {size / 1e6:.2f} MB, signed; one "
        "Python web server; no process may compile. A process begins with PyTorch imported, and waits up to "
        f"{SECONDS} s for an answer (`SGLJIT_REMOTE_TIMEOUT`), as all share the cores of one machine; caches are below "
        f"`{options.directory}`. One alone on this share: the CPU seconds of a process of the same run and of the "
        "server for it, times the processes, divided by the cores that other programs left; or the time of one alone, "
        f"where that is longer. Goals: {GOAL} times that for the slowest, {MOST_REQUESTS:.0f} requests a process, no "
        f"compile, and {GOAL_OF_ONE:.0f} ms for a later artifact over a hit of the local cache. The first of a process "
        "waits for what reads and verifies a remote, which a thread imports from the first look-up of an op on. "
        "Medians, and the least of all rounds."
    )
    page = results.write_results(
        options.output,
        "Machines that start from a store",
        {"": table, "One artifact": ones},
        note=note,
        plots=plots,
        device="cpu",
    )
    print(page, end="")
    goals = missed(table, ones)
    for goal in goals:
        print(f"missed: {goal}", file=sys.stderr)
    return 1 if goals else 0


if __name__ == "__main__":
    sys.exit(main())
