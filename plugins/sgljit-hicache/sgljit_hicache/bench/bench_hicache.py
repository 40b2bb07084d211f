"""How fast do rows move, compared with PyTorch's indexing, plain copies and other libraries' kernels in one run?

    python -m sgljit_hicache.bench.bench_hicache [--peers DIR] [--output DIR] [--only TABLE ...]

``--peers`` names a folder with a ``peers.py`` that offers other kernels; without it those columns are missing. Tables:

rows        one layer, K and V, rows of 2048 bytes: GB/s one way, and the chosen launch
pages       the same, with indices in pages of 16 and 64 rows
sizes       32 MiB of each cache in rows of other sizes, 576 bytes (one cache) among them
layers      32 layers in one launch, addresses on the CPU and on the device
gemm        the slowdown of a bfloat16 matrix product by a concurrent transfer, also compared with a peer's default,
            with the interval of the median; and the rate of the transfer

Transfers are replayed from CUDA graphs; each call of a graph takes other rows, together more than the last cache.
``--output`` gets hicache.md, the numbers as hicache.json, and plots; ``--draw`` makes the plots from such a file.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from sgljit_core import ops
from sgljit_core.benchmark import run_benchmark
from sgljit_core.benchmark.results import to_markdown, write_plot, write_results
from sgljit_hicache.ops import host_module

from .workload import (
    DIRECTIONS,
    POOL_ROWS,
    ROW_BYTES,
    Transfer,
    Workload,
    check,
    gigabytes_per_second,
    make_pool,
    make_workload,
    memcpy_gigabytes_per_second,
)

LARGE_POOL_ROWS = 32 * POOL_ROWS
ROWS = [16, 64, 256, 1024, 2048, 8192, 16384]
METHODS = ["rows", "bulk", "any"]
GEMM = 8192
NOTE = """GB/s (10^9 bytes) one way. Peers: another library's kernel for the same rows, with at most 2 blocks (q2, its \
default) and with at most 32 (q32), and its bulk-copy kernel (tma). "memcpy" is two plain copies, of K and of V, of as \
many bytes; "launch" the kernel, and blocks x threads: a transfer holds no more multiprocessors than it has blocks."""

family = ops["hicache"]
ours: Transfer = family.transfer_hicache_one_layer
Row = dict[str, Any]


def last_launch() -> str:
    """The chosen launch."""
    packed = host_module().last_launch()
    return f"{METHODS[packed >> 56]} {packed >> 28 & 0xFFFFFFF} x {packed & 0xFFFFFFF}"


def torch_indexing(*call: torch.Tensor) -> None:
    """The transfer without a kernel: gather on the source's device, copy, scatter on the destination's."""
    k_dst, v_dst, indices_dst, k_src, v_src, indices_src = call
    for dst, src in ((k_dst, k_src), (v_dst, v_src)):
        rows = src[indices_src.to(src.device)]
        dst[indices_dst.to(dst.device)] = rows.to(dst.device)


class Peers:
    """Kernels of ``peers.py``; empty without it."""

    def __init__(self, folder: str | None) -> None:
        self._peers: Any = None
        if folder is not None:
            sys.path.insert(0, folder)
            self._peers = importlib.import_module("peers").Peers(folder)

    def one_layer(self) -> Iterator[tuple[str, Transfer]]:
        """The peers by the names of the columns."""
        if self._peers is None:
            return
        modules: list[tuple[str, Callable[[], Any]]] = [
            ("q2", functools.partial(self._peers.hicache, ROW_BYTES, 2)),
            ("q32", functools.partial(self._peers.hicache, ROW_BYTES, 32)),
            ("tma", self._peers.hicache_tma),
        ]
        for name, module in modules:
            try:
                run = module().one
            except Exception as error:  # noqa: BLE001 - a peer that does not build is reported, not hidden
                print(f"peer {name}: {str(error).strip().splitlines()[-1][:160]}")
                continue
            yield name, run

    def all_layers(self, quota: int) -> Callable[..., object] | None:
        """The peers for rows of 2048 bytes."""
        if self._peers is None:
            return None
        run: Callable[..., object] = self._peers.hicache(ROW_BYTES, quota).all
        return run


def measure(work: Workload, peers: Peers) -> Row:
    """A row of a table: ours, the launch, the peers."""
    check(ours, work)
    row: Row = {"ours": gigabytes_per_second(ours, work), "launch": last_launch()}
    others = {name: gigabytes_per_second(run, work) for name, run in peers.one_layer()}
    row |= others
    if others:
        row["ours / best peer"] = row["ours"] / max(others.values())
    return row


def table_large(peers: Peers) -> list[Row]:
    """One layer of larger pools, by direction, pool and number of rows."""
    rows = []
    for direction in ("h2d", "d2h"):
        for pool_rows in (4 * POOL_ROWS, LARGE_POOL_ROWS):
            pools = [make_pool(where, pool_rows) for where in DIRECTIONS[direction] for _ in "kv"]
            for count in (64, 256, 1024, 2048, 16384):
                row = {"direction": direction, "pools of": _size_of(pools[0]), "rows": str(count)}
                rows.append({**row, **measure(make_workload(direction, count, pools=pools), peers)})
    return rows


def _size_of(pool: torch.Tensor) -> str:
    return f"{pool.nbytes >> 20} MiB"


def table_rows(peers: Peers) -> list[Row]:
    """One layer, by direction and number of rows."""
    rows = []
    for direction, places in DIRECTIONS.items():
        pools = [make_pool(where) for where in places for _ in "kv"]
        for count in ROWS:
            work = make_workload(direction, count, pools=pools)
            row = measure(work, peers)
            row["memcpy"] = memcpy_gigabytes_per_second(pools, work.bytes_of_a_call)
            row["% of memcpy"] = 100 * row["ours"] / row["memcpy"]
            row["torch"] = math.nan
            if count in (16, 256, 2048, 16384):
                few = Workload(work.calls[:3], work.bytes_of_a_call)
                row["torch"] = gigabytes_per_second(torch_indexing, few, graph=direction == "d2d")
            rows.append({"direction": direction, "rows": str(count), **row})
    return rows


def table_pages(peers: Peers) -> list[Row]:
    """Whole pages of rows that are neighbours on both sides."""
    rows = []
    for direction, places in DIRECTIONS.items():
        pools = [make_pool(where) for where in places for _ in "kv"]
        for page in (16, 64):
            for count in (256, 16384):
                row = measure(make_workload(direction, count, page, pools), peers)
                rows.append({"direction": direction, "page": str(page), "rows": str(count), **row})
    return rows


def table_sizes(_: Peers) -> list[Row]:
    """Rows of other sizes, 32 MiB of each cache per call."""
    rows = []
    for direction, places in DIRECTIONS.items():
        for row_bytes in (100, 128, 256, 512, 576, 1024, 4096, 16384):
            pools = [make_pool(where, 2**27 // row_bytes, row_bytes) for where in places for _ in "kv"]
            work = make_workload(direction, 2**25 // row_bytes, pools=pools)
            check(ours, work)
            rate, launch = gigabytes_per_second(ours, work), last_launch()
            mla = Workload([[call[0], call[2], call[3], call[5]] for call in work.calls], work.bytes_of_a_call // 2)
            row = {"direction": direction, "row bytes": str(row_bytes), "K and V": rate, "launch": launch}
            row["one cache"] = gigabytes_per_second(family.transfer_hicache_one_layer_mla, mla)
            rows.append({**row, "its launch": last_launch()})
    return rows


def table_layers(peers: Peers, num_layers: int = 32) -> list[Row]:
    """All layers in one launch, compared with a launch for each layer; the layers of a pool are neighbours."""
    rows = []
    for direction, places in DIRECTIONS.items():
        pools = [make_pool(where, num_layers * 4096) for where in places for _ in "kv"]
        layers = [pool.chunk(num_layers) for pool in pools]
        tables = [torch.tensor([layer.data_ptr() for layer in of], dtype=torch.uint64) for of in layers]
        on_device = [table.cuda() for table in tables]
        strides = {"kv_cache_src_stride_bytes": ROW_BYTES, "kv_cache_dst_stride_bytes": ROW_BYTES}
        for count in (16, 256, 2048):
            dst, src = (torch.randperm(4096, device="cuda")[:count] for _ in range(2))
            num_bytes = 2 * count * ROW_BYTES
            each = [[*of[:2], dst, *of[2:], src] for of in zip(*layers, strict=True)]

            def rate(run: Transfer, addresses: list[torch.Tensor], *rest: int) -> float:
                call = [*addresses[:2], dst, *addresses[2:], src, *rest]  # noqa: B023
                microseconds = run_benchmark(run, [call], device="cuda", seconds=0.1)[0]
                return num_layers * num_bytes / microseconds / 1e3  # noqa: B023

            all_layer = functools.partial(family.transfer_hicache_all_layer, **strides)
            row: Row = {"direction": direction, "rows": str(count), "ours": rate(all_layer, tables)}
            row["launch"] = last_launch()
            row["a launch a layer"] = gigabytes_per_second(ours, Workload(each, num_bytes))
            row["addresses on the device"] = rate(all_layer, on_device)
            row["its launch"] = last_launch()
            for quota in (2, 32):
                peer = peers.all_layers(quota)
                if peer is not None:
                    row[f"q{quota}"] = rate(peer, on_device, ROW_BYTES, ROW_BYTES)
            rows.append(row)
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


def table_gemm(peers: Peers, rounds: int = 60) -> list[Row]:
    """In a round all run twice, in a random order and then in its reverse.

    A clock that drifts, and what ran before, so fall on all alike; two of them are compared in pairs, by the round.
    """
    products, rows, chance = Products(), [], random.Random(0)  # noqa: S311 - no secret
    for direction, pool_rows in itertools.product(("h2d", "d2h"), (POOL_ROWS, LARGE_POOL_ROWS)):
        pools = [make_pool(where, pool_rows) for where in DIRECTIONS[direction] for _ in "kv"]
        for count in (256, 1024, 16384):
            work = make_workload(direction, count, pools=pools)
            work = Workload(work.calls[: max(1, 4096 // count)], work.bytes_of_a_call)  # several per run
            graphs: dict[str, torch.cuda.CUDAGraph | None] = {"alone": None}
            launches: dict[str, str] = {}
            for name, run in [("ours", ours), *peers.one_layer()]:
                graphs[name] = capture(run, work)
                launches[name] = last_launch() if name == "ours" else ""
            times: dict[str, list[float]] = {name: [] for name in graphs}
            rates: dict[str, list[float]] = {name: [] for name in graphs}
            products.run(None)
            for _ in range(rounds):
                order = chance.sample(list(graphs), len(graphs))
                found = [(name, *products.run(graphs[name])) for name in order + order[::-1]]
                for name in graphs:
                    times[name].append(sum(time for of, time, _ in found if of == name) / 2)
                    rates[name] += [rate for of, _, rate in found if of == name]
            for name in launches:
                row: Row = {"direction": direction, "pools of": _size_of(pools[0]), "rows": str(count)}
                row |= {"kernel": name, "launch": launches[name]}
                for column, other in (("product slower by, %", "alone"), ("than beside q2, %", "q2")):
                    if other in times:
                        triples = zip(times[name], times[other], times["alone"], strict=True)
                        slower = [100 * (time - of_other) / alone for time, of_other, alone in triples]
                        row[column], row[f"{column}: 95 %"] = median_and_interval(slower)
                rate = statistics.mean(rates[name]) * work.bytes_of_a_call * len(work.calls) / 1e6
                rows.append({**row, "transfer beside, GB/s": rate})
    return rows


TABLES = {
    "rows": (table_rows, "One layer, K and V, rows of 2048 bytes at random places"),
    "large": (table_large, "The same in larger pools, whose addresses miss the TLB"),
    "pages": (table_pages, "One layer, in pages"),
    "sizes": (table_sizes, "Other row sizes, 32 MiB of each cache"),
    "layers": (table_layers, "32 layers of K and V in one launch"),
    "gemm": (table_gemm, f"A bfloat16 product of {GEMM}^3 beside transfers"),
}


def draw(found: dict[str, list[Row]], directory: Path) -> dict[str, Path]:
    """A plot for each direction, if matplotlib is installed; by description, relative to the directory."""
    plots = {}
    for direction in DIRECTIONS:
        rows = [row for row in found.get("rows", []) if row["direction"] == direction]
        lines = [name for name in ("ours", "q2", "q32", "tma", "torch", "memcpy") if rows and name in rows[0]]
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
    arguments = parser.parse_args()
    if arguments.draw is not None:
        draw(json.loads(arguments.draw.read_text()), arguments.output or arguments.draw.parent)
        return
    torch.manual_seed(0)
    peers = Peers(arguments.peers)
    found: dict[str, list[Row]] = {}
    for name in arguments.only:
        table, title = TABLES[name]
        found[name] = table(peers)
        print(f"{title}\n\n{to_markdown(found[name])}", flush=True)
        torch.cuda.empty_cache()
    if arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "hicache.json").write_text(json.dumps(found, indent=1))
        tables = {TABLES[name][1]: rows for name, rows in found.items()}
        write_results(
            arguments.output / "hicache.md",
            "Moving rows of KV caches",
            tables,
            note=NOTE,
            plots=draw(found, arguments.output),
        )


if __name__ == "__main__":
    main()
