"""Which layout of rows over threads is fastest on this GPU, and how far from it is the choice of impl/row_layout.h?

    python -m sgljit_norm.bench.tune [--ops rmsnorm,layernorm] [--sizes 4096,5120] [--tokens 1,128] [--json FILE]
    python -m sgljit_norm.bench.tune --header include/sgl_kernel/impl/tuned/h100.h

Every layout that could be good runs in turn with the others, in CUDA graphs: on rows that lie in the last cache, as the
kernel before has just written them, and on memory that rotates past it. A line says what is best, and how the choice
for this chip compares, and the rule for chips that nobody tuned. With `--header` it writes the chip's table, from all
ops and numbers of tokens.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import itertools
import json
import math
import multiprocessing
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sgljit_core import cache_once
from sgljit_norm.plugin import FAMILY

if TYPE_CHECKING:
    from tvm_ffi import Module

SIZES = (
    *(512, 576, 768, 896, 960, 1024, 1152, 1280, 1536, 1600, 2048, 2240, 2304, 2560, 2880, 3072, 3200, 3584, 3840),
    *(4096, 4544, 4608, 4800, 5120, 5376, 5760, 6144, 6656, 7168, 7680, 8192, 9216, 10240, 11264, 12288, 13312),
    *(14336, 15360, 16384),
)
LONGEST = 12288  # float32 elements: rows of a table beyond the vectors of 16384 elements of 16 bits
TOKENS = (1, 8, 32, 128, 192, 256, 384, 512, 768, 1024, 2048, 8192)
WORD = 16  # bytes of a load
WARP, MOST_THREADS = 32, 1024
CACHED = 2**24  # bytes of rows that stay in the last cache
ROTATED = 2**27  # more than it holds
MOST_CALLS, LEAST_CALLS = 64, 4  # in a graph
REPLAYS = 5

Layout = tuple[int, int, bool]  # threads that share a row, threads of a block, whether the next kernel may start first
Chip = tuple[int, int, int, int]  # multiprocessors, threads of each, major and minor compute capability

WORKS = {"rmsnorm": "kOneInput", "fused_add_rmsnorm": "kMoreInputs", "layernorm": "kTwoPasses"}  # of sgl::RowWork


@cache_once
def module() -> Module:
    """The ops with a given layout."""
    return FAMILY.load_host("norm_tune", cpp_files=["tune.cpp"], header_only=False)


def chip() -> Chip:
    """This GPU, as ``host::runtime::Chip``."""
    properties = torch.cuda.get_device_properties(0)
    return (
        properties.multi_processor_count,
        properties.max_threads_per_multi_processor,
        properties.major,
        properties.minor,
    )


def chosen_layout(vectors: int, work: int, num_rows: int, on: Chip) -> Layout:
    """The choice of impl/row_layout.h, for a ``sgl::RowWork`` by its number."""
    number = module().chosen_layout(vectors, work, num_rows, *on)
    return number >> 16 & 0xFFFF, number & 0xFFFF, bool(number >> 32)


def layouts(vectors: int) -> list[Layout]:
    """The layouts that could be good for rows of so many vectors: from one vector for each thread to sixteen."""
    found: set[tuple[int, int]] = set()
    if vectors <= 6 * WARP:
        found.add((min(WARP, 1 << max(0, vectors - 1).bit_length()), 8 * WARP if vectors <= WARP else 4 * WARP))
    for held in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16):
        threads = math.ceil(math.ceil(vectors / held) / WARP) * WARP
        if (WARP if held <= 8 else 2 * WARP) < threads <= MOST_THREADS:
            found.add((threads, threads))
    return sorted((*layout, first) for layout in found for first in (False, True))


def build(op: str, dtype: torch.dtype, kernel: tuple[int, int, int]) -> None:
    """Compile a kernel: of a size, with threads that share a row and threads of a block."""
    size, *layout = kernel
    memory = torch.zeros(2 * LEAST_CALLS * size, dtype=dtype, device="cuda")
    module().set_layout(*layout, False)
    getattr(module(), op)(*calls_of(op, 1, size, dtype, memory)[0])


def calls_of(
    op: str, tokens: int, size: int, dtype: torch.dtype, memory: torch.Tensor, rotated: int = ROTATED
) -> list[tuple[torch.Tensor, ...]]:
    """The arguments of each call of a graph, as parts of the memory, of which they take ``rotated`` bytes in turns."""
    elements = tokens * size
    sets = min(MOST_CALLS, max(1, rotated // (2 * elements * dtype.itemsize)), memory.numel() // (2 * elements))
    vectors = [memory.new_ones(size) for _ in range(2 if op == "layernorm" else 1)]
    pairs = [*memory[: sets * 2 * elements].view(sets, 2, tokens, size)] * math.ceil(LEAST_CALLS / sets)
    if op == "fused_add_rmsnorm":
        return [(x, residual, *vectors) for x, residual in pairs]
    return [(x, *vectors, out) for x, out in pairs]


def graph_of(run: Callable[..., object], calls: list[tuple[torch.Tensor, ...]]) -> torch.cuda.CUDAGraph:
    """A graph of the calls. New tensors that they return have memory of their own."""
    run(*calls[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [run(*arguments) for arguments in calls]
    del kept
    return graph


def microseconds(graphs: dict[Any, torch.cuda.CUDAGraph], num_calls: int) -> dict[Any, float]:
    """The median time of a call of each graph; they take turns."""
    samples: dict[Any, list[float]] = {name: [] for name in graphs}
    for name in (name for _ in range(REPLAYS) for name in graphs):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graphs[name].replay()  # not timed: while it runs, the start of the next one is on its way
        begin.record()
        graphs[name].replay()
        end.record()
        end.synchronize()
        samples[name].append(begin.elapsed_time(end) * 1e3 / num_calls)
    return {name: statistics.median(times) for name, times in samples.items()}


def tune(
    op: str,
    sizes: list[int],
    tokens: list[int],
    dtype: torch.dtype,
    *,
    others: Callable[[int], dict[str, Any]] = lambda _: {},
    tried: Callable[[int, int], Iterable[Layout]] = lambda vectors, _: layouts(vectors),
) -> Iterator[dict[str, Any]]:
    """A row for each shape and kind of memory: the time of each layout ``tried(vectors, tokens)``.

    And of ``others(size)``. Rows that do not fit into the last cache are not ``cached``.
    """
    kernels = {
        (size, *layout[:2])
        for size, count in itertools.product(sizes, tokens)
        for layout in tried(size * dtype.itemsize // WORD, count)
    }
    # NVRTC compiles one kernel at a time in a process.
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(functools.partial(build, op, dtype), sorted(kernels), chunksize=8))
    tuned, unknown = chip(), (*chip()[:2], 0, 0)
    work = list(WORKS).index(op)  # as sgl::RowWork
    most = max(2 * size * count for size in sizes for count in tokens)
    memory = torch.empty(max(ROTATED // dtype.itemsize, most), dtype=dtype, device="cuda").normal_()
    for size, count, rotated in itertools.product(sizes, tokens, (CACHED, ROTATED)):
        if rotated == CACHED < 2 * size * count * dtype.itemsize:
            continue
        calls = calls_of(op, count, size, dtype, memory, rotated)
        graphs: dict[Any, torch.cuda.CUDAGraph] = {name: graph_of(run, calls) for name, run in others(size).items()}
        vectors = size * dtype.itemsize // WORD
        chosen, by_rule = (chosen_layout(vectors, work, count, on) for on in (tuned, unknown))
        for layout in {*tried(vectors, count), chosen, by_rule}:
            module().set_layout(*layout)
            graphs[layout] = graph_of(getattr(module(), op), calls)
        times = microseconds(graphs, len(calls))
        own = {layout: time for layout, time in times.items() if isinstance(layout, tuple)}
        best = min(own, key=own.__getitem__)
        yield {
            "op": op,
            "size": size,
            "vectors": vectors,
            "tokens": count,
            "cached": rotated == CACHED,
            "chosen": chosen,
            "best": best,
            "rule": by_rule,
            "chosen us": own[chosen],
            "best us": own[best],
            "chosen / best": own[chosen] / own[best],
            "rule / best": own[by_rule] / own[best],
            "layouts": own,
            "others": {name: time for name, time in times.items() if name not in own},
        }


COLUMNS = ((1, 8), (32, 128), (192, 256), (384,), (512,), (768,), (1024,), (2048, 8192))  # of the table, for 132 SMs
CLOSE = 0.02  # layouts whose times differ by less are alike
STAYS = 0.05  # a layout of the table that is less behind the best one stays: times vary by some percent between runs


def line(rows: list[dict[str, Any]]) -> list[tuple[int, bool]]:
    """The line of the table for rows of one size: for each column the layout that is the least behind anywhere.

    Returns:
        The threads that share a row, and whether the next kernel may start first. A layout of the table stays unless it
        is further behind.
    """
    found: list[tuple[int, bool]] = []
    for tokens in COLUMNS:
        of_column = [row for row in rows if row["tokens"] in tokens]
        cells = [row["layouts"] for row in of_column]
        behind = {
            layout: max(times[layout] / min(times.values()) for times in cells)
            for layout in set.intersection(*map(set, cells))
        }
        entries = {(threads, first): time for (threads, _, first), time in behind.items()}
        least = min(entries.values())
        threads, _, first = of_column[0]["chosen"]
        if entries[threads, first] <= least + STAYS:
            found.append((threads, first))
            continue
        good = [entry for entry, time in entries.items() if time <= least + CLOSE]
        known = {entry[0] for entry in found}  # one that an earlier column has saves a kernel
        found.append(min(good, key=lambda entry: (entry[0] not in known, entries[entry])))
    return found


def lines(rows: list[dict[str, Any]]) -> dict[int, list[tuple[int, bool]]]:
    """The table of one op, by the most vectors of a row."""
    sizes = sorted({row["vectors"] for row in rows})
    return {
        WARP: [(WARP, True)] * len(COLUMNS),  # less than a warp has vectors for: one for each thread
        **{vectors: line([row for row in rows if row["vectors"] == vectors]) for vectors in sizes},
        4 * MOST_THREADS: [(MOST_THREADS, False)] * len(COLUMNS),  # the longest row
    }


HEADER = """\
// Written by `python -m sgljit_norm.bench.tune --header`,
// on an {chip} with PyTorch {torch}, {date}.
#pragma once

#include <sgl_kernel/impl/tuned/tuned_rows.h>

/// \\file impl/tuned/{file}
/// \\brief The fastest layouts of rows on this chip, by `sgl::RowWork`, in the last cache and past it: medians of CUDA
/// graphs of calls, of vectors of 16 bytes. Included by impl/row_layout.h.

namespace sgl {{

inline constexpr TunedRows kRowsOn{name}[3][{count}] = {{
    // clang-format off
{tables}    // clang-format on
}};

}}  // namespace sgl
"""


def header(tables: dict[str, dict[int, list[tuple[int, bool]]]], *, file: str, chip: str, torch: str, date: str) -> str:
    """The text of a file of include/sgl_kernel/impl/tuned, from the tables of all ops."""
    (count,) = {len(table) for table in tables.values()}
    text = ""
    for op, table in tables.items():
        text += f"    {{  // {WORKS[op]}\n"
        for vectors, entries in table.items():
            threads = ", ".join(f"{threads:4}" for threads, _ in entries)
            first = ", ".join(str(int(first)) for _, first in entries)
            text += (
                f"      {{.vectors = {vectors:4}, .threads_per_row = {{{threads}}}, .triggers_first = {{{first}}}}},\n"
            )
        text += "    },\n"
    name = Path(file).stem.upper()
    return HEADER.format(file=file, chip=chip, torch=torch, date=date, name=name, count=count, tables=text)


def main() -> None:
    """Measure, print, and write the numbers."""
    parser = argparse.ArgumentParser(description="The best layouts of rows over threads")
    parser.add_argument("--ops", default=",".join(WORKS), help="which, with commas between")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "float16", "bfloat16"])
    parser.add_argument("--json", type=Path, help="write all times here")
    parser.add_argument("--header", type=Path, help="write the table of this chip here")
    arguments = parser.parse_args()
    sizes, tokens = ([int(number) for number in text.split(",")] for text in (arguments.sizes, arguments.tokens))
    ops = arguments.ops.split(",")
    if arguments.header and not ({*WORKS} <= {*ops} and {*itertools.chain(*COLUMNS)} <= {*tokens}):
        parser.error("--header needs all ops and numbers of tokens")
    rows, tables = [], {}
    for op in ops:
        of_op = []
        for row in tune(op, sizes, tokens, getattr(torch, arguments.dtype)):
            of_op.append(row)
            memory = ", cached" if row["cached"] else ""
            sys.stdout.write(
                f"{op} {row['tokens']} x {row['size']}{memory}: chosen {row['chosen']} {row['chosen us']:.2f} us, "
                f"best {row['best']} {row['best us']:.2f} us, {row['chosen / best']:.3f}, "
                f"rule {row['rule']} {row['rule / best']:.3f}\n"
            )
        rows += of_op
        if arguments.header:
            tables[op] = lines([*of_op, *tune(op, [LONGEST], tokens, torch.float32)])
    if arguments.header:
        text = header(
            {op: tables[op] for op in WORKS},
            file=arguments.header.name,
            chip=torch.cuda.get_device_name(),
            torch=torch.__version__,
            date=f"{datetime.date.today()}",
        )
        arguments.header.write_text(text)
    if arguments.json is not None:
        plain = [{**row, "layouts": {str(layout): time for layout, time in row["layouts"].items()}} for row in rows]
        arguments.json.write_text(json.dumps(plain))


if __name__ == "__main__":
    main()
