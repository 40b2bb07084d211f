"""How fast do rows move, compared with PyTorch's indexing, plain copies and other libraries' kernels in one run?

    python -m sgljit_hicache.bench.bench_hicache [--peers DIR] [--output DIR] [--only TABLE ...] [--quick]

``--peers`` names a folder with a ``peers.py`` that offers other kernels; without it those columns are missing. Tables:

call        one call of 64 rows from Python, not from a graph, until the device has finished: microseconds
rows        one layer, K and V, rows of 2048 bytes: GB/s one way, and the chosen launch
link        between device and host: rows and pools of many sizes, at random places, in order, and in pages
sizes       32 MiB of each cache in rows of other sizes, 576 bytes (one cache) among them
layers      61 layers in one launch, addresses on the CPU and on the device
large       pools of 16 GiB of K and of V, as one layer and as 61
gemm        the slowdown of a bfloat16 matrix product by a concurrent transfer, the default and a quiet one, also
            compared with a peer's default, with the interval of the median; and the rate of the transfer

All but "call" are replayed from CUDA graphs; each call of a graph takes other rows, together more than the last cache
and than all translations of addresses. ``--output`` gets hicache.md, the numbers as hicache.json, and plots; ``--draw``
makes the plots from such a file. ``--quick`` takes fewer samples.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import json
import math
import random
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from sgljit_core import ops
from sgljit_hicache.plugin import FAMILY
from sgljit_tools.benchmark import run_benchmark
from sgljit_tools.benchmark.results import to_markdown, write_plot, write_results

from .workload import (
    DIRECTIONS,
    POOL_BYTES,
    ROW_BYTES,
    Transfer,
    Workload,
    check,
    gigabytes_per_second,
    make_pools,
    make_workload,
    memcpy_gigabytes_per_second,
)

MIB, GIB = 1 << 20, 1 << 30
LARGE_POOL_BYTES, LARGEST_POOL_BYTES = 2 * GIB, 16 * GIB
ROWS = [16, 64, 256, 1024, 2048, 8192, 16384]
LINK_SIZES = [64, 128, 256, 512, 1152, 2048, 4096, 16384]
LAYERS = 61
ROUNDS = 3
GEMM = 8192
NOTE = """GB/s (10^9 bytes) one way. Peers: another library's kernel for the same rows, with at most 2 blocks (q2, its \
default) and with at most 32 (q32), which takes multiples of 128 bytes. "memcpy" is two plain copies, of K and of V, \
of as many bytes; "launch" is blocks x threads: a transfer holds no more multiprocessors than it has blocks. In graphs \
each call takes rows that the calls before it have not touched: 65536 of K and of V, or as many as 512 calls have."""

family = ops["hicache"]
ours: Transfer = family.transfer_hicache_one_layer
quiet: Transfer = functools.partial(ours, block_quota=2)
Row = dict[str, Any]


def last_launch() -> str:
    """The chosen launch."""
    launch = torch.zeros(4, dtype=torch.int64)
    FAMILY.host_module().last_launch(launch)
    blocks, threads, chunk, group = launch.tolist()
    return f"{blocks} x {threads}{', sorted' if chunk else ''}{f' in groups of {group}' if group else ''}"


def torch_indexing(*call: torch.Tensor) -> None:
    """The transfer without a kernel: gather on the source's device, copy, scatter on the destination's."""
    k_dst, v_dst, indices_dst, k_src, v_src, indices_src = call
    for dst, src in ((k_dst, k_src), (v_dst, v_src)):
        rows = src[indices_src.to(src.device)]
        dst[indices_dst.to(dst.device)] = rows.to(dst.device)


class Bench:
    """The kernels of ``peers.py``, none without it; and for how many seconds each is measured, at least."""

    def __init__(self, folder: str | None, quick: bool) -> None:
        self.seconds = 0.01 if quick else 0.1
        self.rounds = 15 if quick else 60
        self._peers: Any = None
        if folder is None:
            return
        sys.path.insert(0, folder)
        self._peers = importlib.import_module("peers").Peers(folder)
        keys = itertools.product([size for size in LINK_SIZES if size % 128 == 0], (2, 32))
        with ThreadPoolExecutor() as pool:  # compiles them
            list(pool.map(lambda key: self._peers.hicache(*key), keys))

    def peers(self, row_bytes: int, kind: str = "one") -> dict[str, Transfer]:
        """The peers' kernels for rows of this size, for one layer or "all", by the names of the columns."""
        if self._peers is None or row_bytes % 128 != 0:
            return {}
        return {f"q{quota}": getattr(self._peers.hicache(row_bytes, quota), kind) for quota in (2, 32)}

    def in_turns(self, runs: dict[str, tuple[Transfer, Workload]]) -> dict[str, tuple[float, str]]:
        """The median GB/s of each, and its launch if it is ours; in turns, so that a disturbance falls on all alike."""
        samples: dict[str, list[float]] = {name: [] for name in runs}
        launches: dict[str, str] = {}
        for name in list(runs) * ROUNDS:
            samples[name].append(gigabytes_per_second(*runs[name], seconds=self.seconds))
            launches[name] = last_launch()
        return {name: (statistics.median(of), launches[name]) for name, of in samples.items()}

    def measure(self, work: Workload, pools: list[torch.Tensor]) -> Row:
        """A row of a table: ours, the launch, the peers, plain copies."""
        check(ours, work)
        runs = {"ours": ours, **self.peers(work.calls[0][0].shape[1])}
        found = self.in_turns({name: (run, work) for name, run in runs.items()})
        rate, launch = found.pop("ours")
        others = {name: of_peer for name, (of_peer, _) in found.items()}
        row: Row = {"ours": rate, "launch": launch, "q2": math.nan, "q32": math.nan, **others}
        row["ours / best peer"] = row["ours"] / max(others.values()) if others else math.nan
        row["memcpy"] = memcpy_gigabytes_per_second(pools, work.bytes_of_a_call, self.seconds)
        row["% of memcpy"] = 100 * row["ours"] / row["memcpy"]
        return row

    def all_layers(self, pools: list[torch.Tensor], row_bytes: int, count: int) -> Row:
        """The same rows of all layers, which share the pools: in one launch, in a launch a layer, and the peers."""
        layer_rows = len(pools[0]) // (LAYERS * row_bytes)
        size = LAYERS * layer_rows * row_bytes
        layers = [pool[:size].view(LAYERS, layer_rows, row_bytes).unbind() for pool in pools]
        tables = [torch.tensor([layer.data_ptr() for layer in of], dtype=torch.uint64) for of in layers]
        on_device = [table.cuda() for table in tables]
        strides = {"kv_cache_src_stride_bytes": row_bytes, "kv_cache_dst_stride_bytes": row_bytes}
        all_layer = functools.partial(family.transfer_hicache_all_layer, **strides)
        dst, src = (torch.randperm(layer_rows, device="cuda")[:count] for _ in range(2))
        num_bytes = 2 * count * row_bytes
        each = Workload([[*of[:2], dst, *of[2:], src] for of in zip(*layers, strict=True)], num_bytes)

        def of_all(addresses: list[torch.Tensor], *rest: Any) -> Workload:
            return Workload([[*addresses[:2], dst, *addresses[2:], src, *rest]], LAYERS * num_bytes)

        runs: dict[str, tuple[Transfer, Workload]] = {
            "ours": (all_layer, of_all(tables)),
            "a launch a layer": (ours, each),
            "addresses on the device": (all_layer, of_all(on_device)),
        }
        for name, peer in self.peers(row_bytes, "all").items():
            runs[name] = peer, of_all(on_device, row_bytes, row_bytes)
        found = self.in_turns(runs)
        row: Row = {"rows": str(count)}
        row["ours"], row["launch"] = found.pop("ours")
        row["a launch a layer"], _ = found.pop("a launch a layer")
        row["addresses on the device"], row["its launch"] = found.pop("addresses on the device")
        return row | {name: rate for name, (rate, _) in found.items()}


def table_call(bench: Bench) -> list[Row]:
    """A call of 64 rows with the host's part, by direction, in turns."""
    rows = []
    for direction in DIRECTIONS:
        work = make_workload(make_pools(direction), 64)
        check(ours, work)
        runs = {"ours": ours, **bench.peers(ROW_BYTES)}
        times: dict[str, list[float]] = {name: [] for name in runs}
        for name in list(runs) * ROUNDS:
            median, *_ = run_benchmark(runs[name], work.calls, device="cuda", graph=False, seconds=bench.seconds)
            times[name].append(median)
        found = {name: min(of) for name, of in times.items()}
        others = [time for name, time in found.items() if name != "ours"]
        ratio = found["ours"] / min(others) if others else math.nan
        rows.append({"direction": direction, "rows": "64", **found, "ours / best peer": ratio})
    return rows


def table_rows(bench: Bench) -> list[Row]:
    """One layer, by direction and number of rows."""
    rows = []
    for direction in DIRECTIONS:
        pools = make_pools(direction)
        for count in ROWS:
            work = make_workload(pools, count)
            row = bench.measure(work, pools)
            row["torch"] = math.nan
            if count in (16, 256, 2048, 16384):
                few = Workload(work.calls[:3], work.bytes_of_a_call)
                row["torch"] = gigabytes_per_second(
                    torch_indexing, few, graph=direction == "d2d", seconds=bench.seconds
                )
            rows.append({"direction": direction, "rows": str(count), **row})
    return rows


def table_link(bench: Bench) -> list[Row]:
    """Rows and pools of many sizes, at random places, in ascending order, and in pages."""
    rows = []
    for direction in ("h2d", "d2h"):
        whole = make_pools(direction, LARGE_POOL_BYTES)
        for pool_bytes, row_bytes in itertools.product((POOL_BYTES, LARGE_POOL_BYTES), LINK_SIZES):
            pools = [pool[:pool_bytes] for pool in whole]
            for count in (16, 1024, 16384, 65536) if row_bytes <= 512 else (16, 1024, 16384):
                orders = [("random", 1, False)]
                if pool_bytes == LARGE_POOL_BYTES and row_bytes in (256, 1152) and count == 16384:
                    orders += [("ascending", 1, True), ("pages of 64", 64, False)]
                if count * row_bytes > min(128 * MIB, pool_bytes // 2):
                    continue
                for order, page, in_order in orders:
                    work = make_workload(pools, count, row_bytes, page, in_order)
                    row = {"direction": direction, "pools of": _size_of(pool_bytes), "row bytes": str(row_bytes)}
                    rows.append({**row, "rows": str(count), "order": order, **bench.measure(work, pools)})
    return rows


def _size_of(pool_bytes: int) -> str:
    return f"{pool_bytes >> 20} MiB" if pool_bytes < GIB else f"{pool_bytes >> 30} GiB"


def table_sizes(bench: Bench) -> list[Row]:
    """Rows of other sizes, 32 MiB of each cache per call."""
    rows = []
    for direction in DIRECTIONS:
        pools = make_pools(direction)
        for row_bytes in (100, 128, 256, 512, 576, 1024, 4096, 16384):
            work = make_workload(pools, 2**25 // row_bytes, row_bytes)
            check(ours, work)
            one = Workload([[call[0], call[2], call[3], call[5]] for call in work.calls], work.bytes_of_a_call // 2)
            found = bench.in_turns({"both": (ours, work), "one": (family.transfer_hicache_one_layer_mla, one)})
            row: Row = {"direction": direction, "row bytes": str(row_bytes)}
            row["K and V"], row["launch"] = found["both"]
            row["one cache"], row["its launch"] = found["one"]
            rows.append(row)
    return rows


def table_layers(bench: Bench) -> list[Row]:
    """All layers in one launch, compared with a launch for each layer; layers of 8192 rows each."""
    rows = []
    for direction in DIRECTIONS:
        for row_bytes in (256, ROW_BYTES):
            pools = make_pools(direction, LAYERS * 8192 * row_bytes)
            rows += [
                {"direction": direction, "row bytes": str(row_bytes), **bench.all_layers(pools, row_bytes, count)}
                for count in (16, 256, 2048)
            ]
    return rows


def table_large(bench: Bench) -> list[Row]:
    """Pools of 16 GiB: one layer, and 61."""
    rows = []
    pools = make_pools("h2d", LARGEST_POOL_BYTES)
    for direction in ("h2d", "d2h"):
        for row_bytes, count in ((256, 1024), (256, 16384), (1152, 16384), (2048, 1024), (2048, 16384)):
            work = make_workload(pools, count, row_bytes)
            row = {"direction": direction, "layers": "1", "row bytes": str(row_bytes), "rows": str(count)}
            rows.append({**row, **bench.measure(work, pools)})
        for row_bytes, count in ((256, 2048), (ROW_BYTES, 256)):
            found = bench.all_layers(pools, row_bytes, count)
            others = [found[name] for name in ("q2", "q32") if name in found]
            found["ours / best peer"] = found["ours"] / max(others) if others else math.nan
            rows.append({"direction": direction, "layers": str(LAYERS), "row bytes": str(row_bytes), **found})
        pools = pools[2:] + pools[:2]
    return rows


class Products:
    """A bfloat16 matrix product over and over on one stream, transfers over and over on another."""

    def __init__(self) -> None:
        self._factors = [torch.randn(GEMM, GEMM, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        self._out = torch.empty_like(self._factors[0])
        self._stream, self._beside = torch.cuda.Stream(), torch.cuda.Stream()

    def run(self, transfers: torch.cuda.CUDAGraph | None, count: int = 8) -> tuple[float, float]:
        """Milliseconds of a product, and the graph's replays in a millisecond while the products ran."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        marks: list[torch.cuda.Event] = []
        start.record(self._stream)
        with torch.cuda.stream(self._stream):
            for _ in range(count):
                torch.mm(*self._factors, out=self._out)
        end.record(self._stream)
        while transfers is not None and not end.query():
            with torch.cuda.stream(self._beside):
                transfers.replay()
                marks.append(torch.cuda.Event(enable_timing=True))
                marks[-1].record()
            marks[max(0, len(marks) - 3)].synchronize()  # a few ahead
        torch.cuda.synchronize()
        total = start.elapsed_time(end)
        done = [at for at in (start.elapsed_time(mark) for mark in marks) if at <= total]
        return total / count, len(done) / done[-1] if done else 0.0


def capture(run: Transfer, work: Workload) -> torch.cuda.CUDAGraph:
    """All calls of the workload as a graph."""
    run(*work.calls[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in work.calls:
            run(*call)
    return graph


def median_and_interval(samples: list[float]) -> tuple[float, str]:
    """The median, and the order statistics between which the true one lies with 95 % confidence.

    Their ranks are 1.96 standard deviations of a binomial distribution away from the middle.
    """
    ordered, count = sorted(samples), len(samples)
    rank = max(0, math.floor(count / 2 - 1.96 * math.sqrt(count) / 2))
    return statistics.median(ordered), f"{ordered[rank]:.1f} to {ordered[count - 1 - rank]:.1f}"


def table_gemm(bench: Bench) -> list[Row]:
    """In a round all run twice, in a random order and then in its reverse.

    A clock that drifts, and what ran before, so fall on all alike; two of them are compared in pairs, by the round.
    """
    products, rows, chance = Products(), [], random.Random(0)  # noqa: S311 - no secret
    for direction, pool_bytes in itertools.product(("h2d", "d2h"), (POOL_BYTES, LARGE_POOL_BYTES)):
        pools = make_pools(direction, pool_bytes)
        for row_bytes, count in ((256, 8192), (ROW_BYTES, 1024), (ROW_BYTES, 8192)):
            work = make_workload(pools, count, row_bytes)
            work = Workload(work.calls[: max(1, 4096 // count)], work.bytes_of_a_call)  # several per run
            graphs: dict[str, torch.cuda.CUDAGraph | None] = {"alone": None}
            launches: dict[str, str] = {}
            for name, run in [("ours", ours), ("block_quota=2", quiet), *bench.peers(row_bytes).items()]:
                graphs[name] = capture(run, work)
                launches[name] = "" if name.startswith("q") else last_launch()
            times: dict[str, list[float]] = {name: [] for name in graphs}
            rates: dict[str, list[float]] = {name: [] for name in graphs}
            products.run(None)
            for _ in range(bench.rounds):
                order = chance.sample(list(graphs), len(graphs))
                found = [(name, *products.run(graphs[name])) for name in order + order[::-1]]
                for name in graphs:
                    times[name].append(sum(time for of, time, _ in found if of == name) / 2)
                    rates[name] += [rate for of, _, rate in found if of == name]
            for name, launch in launches.items():
                row: Row = {"direction": direction, "pools of": _size_of(pool_bytes), "row bytes": str(row_bytes)}
                row |= {"rows": str(count), "kernel": name, "launch": launch}
                for column, other in (("product slower by, %", "alone"), ("than beside q2, %", "q2")):
                    if other in times:
                        triples = zip(times[name], times[other], times["alone"], strict=True)
                        slower = [100 * (time - of_other) / alone for time, of_other, alone in triples]
                        row[column], row[f"{column}: 95 %"] = median_and_interval(slower)
                rate = statistics.mean(rates[name]) * work.bytes_of_a_call * len(work.calls) / 1e6
                rows.append({**row, "transfer beside, GB/s": rate})
    return rows


TABLES = {
    "call": (table_call, f"One call of 64 rows of {ROW_BYTES} bytes from Python, in microseconds"),
    "rows": (table_rows, "One layer, K and V, rows of 2048 bytes at random places"),
    "link": (table_link, "Between device and host, K and V: rows and pools of many sizes"),
    "sizes": (table_sizes, "Other row sizes, 32 MiB of each cache"),
    "layers": (table_layers, f"{LAYERS} layers of K and V in one launch"),
    "large": (table_large, "Pools of 16 GiB of K and of V"),
    "gemm": (table_gemm, f"A bfloat16 product of {GEMM}^3 beside transfers"),
}


def draw(found: dict[str, list[Row]], directory: Path) -> dict[str, Path]:
    """A plot for each direction, if matplotlib is installed; by description, relative to the directory."""
    plots = {}
    for direction in DIRECTIONS:
        rows = [row for row in found.get("rows", []) if row["direction"] == direction]
        lines = [name for name in ("ours", "q2", "q32", "torch", "memcpy") if rows and name in rows[0]]
        file = Path(f"hicache_{direction}.svg")
        title = f"{direction}: K and V, rows of {ROW_BYTES} bytes"
        if rows and write_plot(directory / file, rows, lines, place=_rows_of, quantity="GB/s one way", title=title):
            plots[title] = file
    return plots


def _rows_of(row: Any) -> str:
    return f"{row['rows']} rows"


def main() -> None:
    """Run the tables."""
    parser = argparse.ArgumentParser(description="How fast rows of KV caches move")
    parser.add_argument("--peers", help="a folder with peers.py")
    parser.add_argument("--output", type=Path, help="a directory for hicache.md, hicache.json and the plots")
    parser.add_argument("--draw", type=Path, help="measure nothing: draw the plots of this hicache.json into --output")
    parser.add_argument("--only", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--quick", action="store_true", help="take fewer samples")
    arguments = parser.parse_args()
    if arguments.draw is not None:
        draw(json.loads(arguments.draw.read_text()), arguments.output or arguments.draw.parent)
        return
    torch.manual_seed(0)
    bench = Bench(arguments.peers, arguments.quick)
    found: dict[str, list[Row]] = {}
    for name in arguments.only:
        table, title = TABLES[name]
        found[name] = table(bench)
        print(f"{title}\n\n{to_markdown(found[name])}", flush=True)
        torch.cuda.empty_cache()
        if arguments.output is not None:  # after each table: what is measured is not lost
            write_page(found, arguments.output)


def write_page(found: dict[str, list[Row]], directory: Path) -> None:
    """The page, the numbers and the plots."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "hicache.json").write_text(json.dumps(found, indent=1))
    tables = {TABLES[name][1]: rows for name, rows in found.items()}
    plots = draw(found, directory)
    write_results(directory / "hicache.md", "Moving rows of KV caches", tables, note=NOTE, plots=plots)


if __name__ == "__main__":
    main()
