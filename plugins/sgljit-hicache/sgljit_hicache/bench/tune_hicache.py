"""Which launch is best? Many grids, as the rows come and sorted, for each direction, size and number of rows.

    python -m sgljit_hicache.bench.tune_hicache [--row-bytes 256 2048] [--rows 1024 16384] [--pool-mib 2048]

GB/s one way, best first. csrc/hicache_launch.h holds the defaults that came out of it.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console

from sgljit_core import ops
from sgljit_hicache.plugin import FAMILY

from .workload import DIRECTIONS, check, gigabytes_per_second, make_pools, make_workload

Launch = tuple[int, int, int, int]  # blocks, threads, rows that a block sorts at a time, and of a group of them
SHOWN = 8
MOST_SORTED = 4096
GROUP = 128


def launches(direction: str, rows: int) -> Iterator[Launch]:
    """The launches to try."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    on_device = [sms, 2 * sms, 4 * sms, rows]
    for blocks in on_device if direction == "d2d" else (1, 2, 4, 8, 16, 32, 64, 128):
        for threads in (64, 128, 256, 512, 1024):
            yield blocks, threads, 0, 0
            if direction != "d2d" and rows >= 16 * blocks:
                chunks = -(-rows // (blocks * MOST_SORTED)) * blocks
                chunk = -(-rows // chunks)
                yield blocks, threads, chunk, 0
                yield blocks, threads, -(-chunk // GROUP) * GROUP, GROUP


def main() -> None:
    """Print the best launches of each."""
    parser = argparse.ArgumentParser(description="Which launch is best")
    parser.add_argument("--row-bytes", nargs="+", type=int, default=[256, 2048])
    parser.add_argument("--rows", nargs="+", type=int, default=[16, 1024, 16384])
    parser.add_argument("--pool-mib", type=int, default=2048, help="of K and of V each")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    arguments = parser.parse_args()
    transfer = ops["hicache"].transfer_hicache_one_layer
    console, found = Console(width=160), []
    for direction in DIRECTIONS:
        pools = make_pools(direction, arguments.pool_mib << 20)
        for row_bytes, rows in itertools.product(arguments.row_bytes, arguments.rows):
            work = make_workload(pools, rows, row_bytes)
            check(transfer, work)
            default, rates = gigabytes_per_second(transfer, work, seconds=0.01), []
            for launch in launches(direction, rows):

                def launched(*call: torch.Tensor, launch: Launch = launch) -> None:
                    FAMILY.host_module().launch_one_layer(*call, None, None, *launch, False)

                rates.append((gigabytes_per_second(launched, work, seconds=0.01), launch))
            console.print(f"{direction} {rows} rows of {row_bytes} bytes, the default {default:.2f} GB/s; the best:")
            for rate, (blocks, threads, chunk, group) in sorted(rates, reverse=True)[:SHOWN]:
                how = f", sorted by {chunk}{f' in groups of {group}' if group else ''}" if chunk else ""
                console.print(f"  {rate:8.2f}  {blocks} x {threads}{how}")
            cell = {"direction": direction, "row bytes": row_bytes, "rows": rows}
            found += [{**cell, "GB/s": rate, "launch": launch} for rate, launch in [(default, None), *rates]]
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
