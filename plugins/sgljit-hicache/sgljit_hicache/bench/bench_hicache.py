"""How fast rows move, beside PyTorch's indexing, a plain copy and other libraries' kernels, in one run.

    python -m sgljit_hicache.bench.bench_hicache [--peers DIR] [--json FILE] [--only TABLE ...]

``--peers`` names a folder with a ``peers.py`` that offers other kernels; without it those columns are missing. Tables:

rows        one layer, K and V, rows of 2048 bytes: GB/s one way, and the launch that was chosen
pages       the same, with indices in pages of 16 and 64 rows
sizes       16384 rows' worth of bytes in rows of other sizes, 576 bytes (one cache) among them
layers      32 layers in one launch, addresses on the CPU and on the device
gemm        how much slower a bfloat16 matrix product runs beside a transfer, and the transfer beside it

Transfers are replayed from CUDA graphs; each call of a graph takes other rows, together more than the last cache.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from sgljit_core import ops
from sgljit_hicache.ops import host_module

from .workload import (
    DIRECTIONS,
    ROW_BYTES,
    Transfer,
    Workload,
    check,
    gigabytes_per_second,
    make_pool,
    make_workload,
    memcpy_gigabytes_per_second,
    seconds_in_graph,
)

ROWS = [16, 64, 256, 1024, 2048, 8192, 16384]
METHODS = ["rows", "bulk", "any"]
GEMM = 8192

family = ops["hicache"]
console = Console(width=180)
results: dict[str, list[dict[str, Any]]] = {}


def ours(call: Any) -> None:
    """This family's op, with its defaults."""
    family.transfer_hicache_one_layer(*call)


def last_launch() -> str:
    """The launch that was chosen: the kernel, and blocks x threads; no more multiprocessors than blocks are used."""
    packed = host_module().last_launch()
    return f"{METHODS[packed >> 56]} {packed >> 28 & 0xFFFFFFF}x{packed & 0xFFFFFFF}"


def torch_indexing(call: Any) -> None:
    """What one writes without a kernel: gather on the source's device, copy, scatter on the destination's."""
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
        """By the names of the columns."""
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
                console.print(f"peer {name}: {str(error).strip().splitlines()[-1][:160]}")
                continue
            yield name, functools.partial(_call, run)

    def all_layers(self, quota: int) -> Callable[..., object] | None:
        """Of rows of 2048 bytes."""
        if self._peers is None:
            return None
        run: Callable[..., object] = self._peers.hicache(ROW_BYTES, quota).all
        return run


def _call(run: Callable[..., object], call: list[torch.Tensor]) -> object:
    return run(*call)


def report(name: str, title: str, rows: list[dict[str, Any]]) -> None:
    """Print a table, and keep it."""
    results[name] = rows
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    console.print(table)


def measure(direction: str, work: Workload, peers: Peers, memcpy: float | None, torch_too: bool) -> dict[str, Any]:
    """One row of a table."""
    check(ours, work)
    row: dict[str, Any] = {"ours": gigabytes_per_second(ours, work), "launch": last_launch()}
    others = {name: gigabytes_per_second(run, work) for name, run in peers.one_layer()}
    row |= others
    if others:
        row["ours / best"] = row["ours"] / max(others.values())
    if torch_too:
        is_captured = direction == "d2d"
        row["torch"] = gigabytes_per_second(
            torch_indexing, Workload(work.calls[:3], work.bytes_of_a_call), not is_captured
        )
    if memcpy is not None:
        row |= {"memcpy": memcpy, "ours / memcpy": row["ours"] / memcpy}
    return row


def table_rows(peers: Peers) -> None:
    """One layer, by direction and number of rows."""
    rows = []
    for direction, places in DIRECTIONS.items():
        memcpy = memcpy_gigabytes_per_second(direction)
        pools = [make_pool(where) for where in places for _ in "kv"]
        for count in ROWS:
            work = make_workload(direction, count, pools=pools)
            row = measure(direction, work, peers, memcpy, torch_too=count in (16, 256, 2048, 16384))
            rows.append({"direction": direction, "rows": count, **row})
    columns = list(dict.fromkeys(name for row in rows for name in row))
    report("rows", "One layer, GB/s one way", [{name: row.get(name, "") for name in columns} for row in rows])


def table_pages(peers: Peers) -> None:
    """Whole pages of rows that follow each other on both sides."""
    rows = []
    for direction, places in DIRECTIONS.items():
        pools = [make_pool(where) for where in places for _ in "kv"]
        for page in (1, 16, 64):
            for count in (256, 16384):
                row = measure(direction, make_workload(direction, count, page, pools), peers, None, torch_too=False)
                rows.append({"direction": direction, "page": page, "rows": count, **row})
    report("pages", "Indices in pages, GB/s one way", rows)


def table_sizes(_: Peers) -> None:
    """Rows of other sizes, 32 MiB of each cache a call."""
    rows = []
    for direction, places in DIRECTIONS.items():
        for row_bytes in (100, 128, 256, 512, 1024, 4096, 16384):
            pools = [make_pool(where, 2**27 // row_bytes, row_bytes) for where in places for _ in "kv"]
            work = make_workload(direction, 2**25 // row_bytes, pools=pools)
            check(ours, work)
            rate = gigabytes_per_second(ours, work)
            rows.append({"direction": direction, "row bytes": str(row_bytes), "ours": rate, "launch": last_launch()})
        pools = [make_pool(where, 2**27 // 576, 576) for where in places]
        work = make_workload(direction, 2**25 // 576, pools=[pools[0], pools[0], pools[1], pools[1]])
        single = Workload([[call[0], call[2], call[3], call[5]] for call in work.calls], work.bytes_of_a_call // 2)
        rate = gigabytes_per_second(lambda call: family.transfer_hicache_one_layer_mla(*call), single)
        rows.append({"direction": direction, "row bytes": "576, MLA", "ours": rate, "launch": last_launch()})
    report("sizes", "Other row sizes, 32 MiB of each cache a call, GB/s one way", rows)


def table_layers(peers: Peers, num_layers: int = 32) -> None:
    """All layers in one launch; a pool for each layer on the device, one pool on the host."""
    rows = []
    for direction, places in DIRECTIONS.items():
        pools = [make_pool(where, num_layers * 4096) for where in places for _ in "kv"]
        tables = [
            torch.tensor([layer.data_ptr() for layer in pool.chunk(num_layers)], dtype=torch.uint64) for pool in pools
        ]
        on_device = [table.cuda() for table in tables]
        for count in (16, 256, 2048):
            dst, src = (torch.randperm(4096, device="cuda")[:count] for _ in range(2))
            num_bytes = 2 * num_layers * count * ROW_BYTES

            def call(run: Any, addresses: list[torch.Tensor], *strides: int, **named: int) -> float:
                arguments = [*addresses[:2], dst, *addresses[2:], src, *strides]  # noqa: B023
                return num_bytes / seconds_in_graph(functools.partial(run, *arguments, **named)) / 1e9  # noqa: B023

            strides = {"kv_cache_src_stride_bytes": ROW_BYTES, "kv_cache_dst_stride_bytes": ROW_BYTES}
            row: dict[str, Any] = {"direction": direction, "rows": count, "layers": num_layers}
            row["ours"] = call(family.transfer_hicache_all_layer, tables, **strides)
            row["launch"] = last_launch()
            row["addresses on the device"] = call(family.transfer_hicache_all_layer, on_device, **strides)
            row["its launch"] = last_launch()
            for quota in (2, 32):
                peer = peers.all_layers(quota)
                if peer is not None:
                    row[f"q{quota}"] = call(peer, on_device, ROW_BYTES, ROW_BYTES)
            rows.append(row)
    report("layers", f"{num_layers} layers in one launch, GB/s one way", rows)


def table_gemm(peers: Peers, rounds: int = 60) -> None:
    """A matrix product over and over on one stream, transfers over and over on another."""
    a, b = (torch.randn(GEMM, GEMM, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    streams = [torch.cuda.Stream(priority=priority) for priority in (0, 0)]
    rows = []

    def products(count: int) -> None:
        with torch.cuda.stream(streams[0]):
            for _ in range(count):
                torch.mm(a, b, out=c)

    def timed(stream: torch.cuda.Stream, work: Callable[[], None]) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(stream)
        work()
        end.record(stream)
        return start, end

    def beside(run: Transfer | None, work: Workload | None) -> tuple[float, float]:
        """Milliseconds of a product; GB/s of the transfers that ran all the while."""
        products(3)
        torch.cuda.synchronize()
        if run is None or work is None:
            start, end = timed(streams[0], lambda: products(rounds))
            torch.cuda.synchronize()
            return start.elapsed_time(end) / rounds, 0.0
        # More transfers than the products last, so that there is always one beside; counted while the products run.
        marks = []
        first = timed(streams[1], lambda: None)[0]
        product_events = timed(streams[0], lambda: products(rounds))
        deadline = time.perf_counter() + 30
        while not product_events[1].query() and time.perf_counter() < deadline:
            with torch.cuda.stream(streams[1]):
                for call in work.calls:
                    run(call)
                    mark = torch.cuda.Event(enable_timing=True)
                    mark.record(streams[1])
                    marks.append(mark)
            marks[-5 if len(marks) > 5 else -1].synchronize()  # only a few ahead
        torch.cuda.synchronize()
        done = [first.elapsed_time(mark) for mark in marks]
        return product_events[0].elapsed_time(product_events[1]) / rounds, (
            work.bytes_of_a_call * len(done) / done[-1] * 1e-6
        )

    alone = beside(None, None)[0]
    for direction in ("h2d", "d2h"):
        for count in (256, 16384):
            work = make_workload(direction, count)
            for name, run in [("ours", ours), *peers.one_layer()]:
                run(work.calls[0])
                launch = last_launch() if name == "ours" else ""
                both = [beside(run, work) for _ in range(3)]
                milliseconds, rate = sorted(both)[1]
                rows.append(
                    {
                        "direction": direction,
                        "rows": count,
                        "kernel": name,
                        "launch": launch,
                        "product alone, ms": alone,
                        "product beside, ms": milliseconds,
                        "slower by, %": 100 * (milliseconds / alone - 1),
                        "transfer beside, GB/s": rate,
                    }
                )
    report("gemm", f"A bfloat16 product of {GEMM}^3 beside a transfer", rows)


TABLES = {"rows": table_rows, "pages": table_pages, "sizes": table_sizes, "layers": table_layers, "gemm": table_gemm}


def main() -> None:
    """Run the tables."""
    parser = argparse.ArgumentParser(description="How fast rows of KV caches move")
    parser.add_argument("--peers", help="a folder with peers.py")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--only", nargs="+", choices=list(TABLES), default=list(TABLES))
    arguments = parser.parse_args()
    torch.manual_seed(0)
    peers = Peers(arguments.peers)
    console.print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    for name in arguments.only:
        TABLES[name](peers)
        torch.cuda.empty_cache()
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"device": torch.cuda.get_device_name(), **results}, indent=1))


if __name__ == "__main__":
    main()
