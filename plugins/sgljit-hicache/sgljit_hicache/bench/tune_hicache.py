"""Which launch is best? Every kernel, in many shapes, for each direction and number of rows.

    python -m sgljit_hicache.bench.tune_hicache [--rows 16 256 2048 16384] [--json FILE]

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
from sgljit_hicache.ops import host_module

from .workload import DIRECTIONS, check, gigabytes_per_second, make_pool, make_workload

Launch = tuple[int, int, int, int, int]  # method, blocks, threads, stages, bytes of a stage
SHOWN = 8


def launches(direction: str, rows: int) -> Iterator[Launch]:
    """The launches to try; a warp of copy_rows moves one row of 2048 bytes at a time."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    if direction == "d2d":
        for threads in (64, 128, 256, 512, 1024):
            whole = max(1, rows * 32 // threads)
            yield from ((0, blocks, threads, 0, 0) for blocks in {whole, sms, 2 * sms, 4 * sms} if blocks <= whole)
        bulk_blocks = [sms, 2 * sms]
    else:
        for blocks in (1, 2, 4, 8, 16, 32, 64):
            for threads in (32, 64, 128, 256, 512, 1024):
                if 1024 <= blocks * threads <= rows * 32 or (rows <= 32 and blocks * threads >= 128):
                    yield 0, blocks, threads, 0, 0
        bulk_blocks = [1, 2, 3, 4, 8, 16]
    for blocks, warps, stages, stage_bytes in itertools.product(
        bulk_blocks, (1, 2, 4, 8), (3, 6, 12), (4096, 8192, 16384)
    ):
        in_flight = warps * stages * stage_bytes
        if 16_000 < in_flight < 200_000 and blocks <= rows and (direction != "d2d" or 2 * in_flight < 200_000):
            yield 1, blocks, 32 * warps, stages, stage_bytes


def main() -> None:
    """Print the best launches of each."""
    parser = argparse.ArgumentParser(description="Which launch is best")
    parser.add_argument("--rows", nargs="+", type=int, default=[16, 256, 2048, 16384])
    parser.add_argument("--json", type=Path, help="write all numbers here")
    arguments = parser.parse_args()
    transfer = ops["hicache"].transfer_hicache_one_layer
    console, found = Console(width=160), []
    for direction, places in DIRECTIONS.items():
        pools = [make_pool(where) for where in places for _ in "kv"]
        for rows in arguments.rows:
            work = make_workload(direction, rows, pools=pools)
            check(transfer, work)
            rates = []
            for launch in [(-1, 0, 0, 0, 0), *launches(direction, rows)]:
                host_module().override_launch(*launch)
                rates.append((gigabytes_per_second(transfer, work, seconds=0.01), launch))
            host_module().override_launch(-1, 0, 0, 0, 0)
            found += [{"direction": direction, "rows": rows, "GB/s": rate, "launch": launch} for rate, launch in rates]
            console.print(f"{direction} {rows} rows, the default {rates[0][0]:.2f} GB/s; the best:")
            for rate, (method, blocks, threads, stages, stage_bytes) in sorted(rates[1:], reverse=True)[:SHOWN]:
                ring = f", {stages} stages of {stage_bytes}" if method == 1 else ""
                console.print(f"  {rate:8.2f}  {('rows', 'bulk')[method]} {blocks} x {threads}{ring}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
