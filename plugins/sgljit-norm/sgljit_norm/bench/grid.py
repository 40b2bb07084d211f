"""Is an op slower than another library's kernel, or than a plain copy, at any size that an open model has?

    python -m sgljit_norm.bench.grid [--ops rmsnorm,layernorm] [--dtypes bfloat16] [--tokens 1,128] [--peers DIR]
        [--compilers 8] [--json FILE] [--output bench/results/norm_grid.md]

Every size of ``open_models.py`` with 1 to 16384 tokens. The kernels of a cell run in turns, in CUDA graphs of up to
256 calls on memory that rotates: beside SGLang's (``--peers`` names a folder with a ``peers.py`` that offers them),
Quack's if quack-kernels is installed, torch.compile and PyTorch; but for SGLang's, they may return new tensors. The
page has a heat map for each op, our time divided by the best of the others; a CSV file beside it has all times.
``--compilers`` processes fill the caches of torch.compile and of Quack first.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import importlib.util
import itertools
import json
import math
import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import layer_norm, rms_norm

from sgljit_core import ops
from sgljit_tools.benchmark.results import write_results

from . import open_models
from .heat_map import write_heat_map
from .open_models import Place
from .tune import LEAST_CALLS, ROTATED, graph_of, microseconds

EPS, LAYERNORM_EPS = 1e-6, 1e-5
TOKENS = (1, 8, 32, 128, 256, 512, 1024, 4096, 16384)
FEWER_TOKENS = (1, 128, 1024, 16384)  # of other dtypes than bfloat16
FEWER_PLACES = {(1024,), (4096,), (12288,), (32, 8, 128), (6144, 1024)}
MOST_CALLS = 256  # in a graph
LARGE = 16 << 20  # bytes of a call: then only bandwidth counts
SLOW = 512 << 20  # bytes; a plain copy of as many takes half as long again
OTHERS = ("SGLang", "Quack", "torch.compile", "PyTorch")

Tensors = tuple[torch.Tensor, ...]
Run = Callable[..., object]
Shapes = list[tuple[int, ...]]


@dataclass(frozen=True)
class Op:
    """How to measure an op.

    Attributes:
        models: the sizes, by model.
        shapes: of the arguments, ``shapes(tokens, *place)``; those of one dimension are weights.
        pytorch: the results, as new tensors.
        results: which arguments hold them.
        in_place: every matrix is read and written, rather than the first read and the last written.
    """

    models: Mapping[str, list[int] | Place]
    shapes: Callable[..., Shapes]
    pytorch: Callable[..., Tensors]
    results: tuple[int, ...]
    in_place: bool = False

    def elements(self, tokens: int, place: Place) -> int:
        """Elements of a call, without weights: each matrix once."""
        return sum(math.prod(shape) for shape in self.shapes(tokens, *place) if len(shape) > 1)


def plain(x: torch.Tensor, w: torch.Tensor, *_: torch.Tensor) -> Tensors:
    """Rmsnorm."""
    return (rms_norm(x, w.shape, w, EPS),)


def plain_sum(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor) -> Tensors:
    """fused_add_rmsnorm."""
    total = x + residual
    return rms_norm(total, w.shape, w, EPS), total


def plain_layernorm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, *_: torch.Tensor) -> Tensors:
    """Layernorm."""
    return (layer_norm(x, w.shape, w, b, LAYERNORM_EPS),)


def plain_heads(q: torch.Tensor, k: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor) -> Tensors:
    """Both normalisations of queries and keys."""
    return rms_norm(q, q_weight.shape, q_weight, EPS), rms_norm(k, k_weight.shape, k_weight, EPS)


def gemma(run: Callable[..., Tensors], weights: int) -> Callable[..., Tensors]:
    """The same with 1 + weight for the last ``weights`` vectors."""

    def of_gemma(*tensors: torch.Tensor) -> Tensors:
        vectors = [i for i, tensor in enumerate(tensors) if tensor.dim() == 1][-weights:]
        return run(*(1 + tensor if i in vectors else tensor for i, tensor in enumerate(tensors)))

    return of_gemma


def normed(tokens: int, size: int) -> Shapes:
    """The arguments of rmsnorm: input, weight, out."""
    return [(tokens, size), (size,), (tokens, size)]


def added(tokens: int, size: int) -> Shapes:
    """The arguments of fused_add_rmsnorm: input, residual, weight."""
    return [(tokens, size), (tokens, size), (size,)]


def with_bias(tokens: int, size: int) -> Shapes:
    """The arguments of layernorm: input, weight, bias, out."""
    return [(tokens, size), (size,), (size,), (tokens, size)]


def heads(tokens: int, q: int, k: int, dim: int) -> Shapes:
    """The arguments of fused_inplace_qknorm: queries, keys, their weights."""
    return [(tokens, q, dim), (tokens, k, dim), (dim,), (dim,)]


def all_heads(tokens: int, q: int, k: int) -> Shapes:
    """The arguments of fused_inplace_qknorm_across_heads: the same."""
    return [(tokens, q), (tokens, k), (q,), (k,)]


OPS = {
    "rmsnorm": Op(open_models.RMSNORM, normed, plain, (2,)),
    "fused_add_rmsnorm": Op(open_models.RMSNORM, added, plain_sum, (0, 1), in_place=True),
    "gemma_rmsnorm": Op(open_models.GEMMA_RMSNORM, normed, gemma(plain, 1), (2,)),
    "gemma_fused_add_rmsnorm": Op(open_models.GEMMA_RMSNORM, added, gemma(plain_sum, 1), (0, 1), in_place=True),
    "layernorm": Op(open_models.LAYERNORM, with_bias, plain_layernorm, (3,)),
    "fused_inplace_qknorm": Op(open_models.QKNORM, heads, plain_heads, (0, 1), in_place=True),
    "gemma_fused_inplace_qknorm": Op(open_models.GEMMA_QKNORM, heads, gemma(plain_heads, 2), (0, 1), in_place=True),
    "fused_inplace_qknorm_across_heads": Op(
        open_models.QKNORM_ACROSS_HEADS, all_heads, plain_heads, (0, 1), in_place=True
    ),
}


def places_of(name: str, dtype: str) -> list[Place]:
    """The sizes of an op; fewer of other dtypes than bfloat16."""
    places = open_models.places_of(OPS[name].models)
    return [place for place in places if dtype == "bfloat16" or place in FEWER_PLACES]


def sglang(peers: Any, name: str, place: Place) -> Run | None:
    """SGLang's kernel for bfloat16, if it has one for these rows and it compiles."""
    try:
        if name == "rmsnorm":
            kernel = peers.rmsnorm(place[0])
        elif name == "fused_add_rmsnorm":
            kernel = peers.fused_add_rmsnorm()
        elif name == "fused_inplace_qknorm":
            kernel = peers.qknorm(place[2])
        else:
            return None
    except RuntimeError as error:
        sys.stderr.write(f"SGLang's {name} does not compile for {place}: {str(error)[-300:]}\n")
        return None
    return lambda *arguments: kernel(*arguments, EPS)


def quack(name: str) -> Run | None:
    """Quack's kernel, if it is installed and has the op. PyTorch's own rms_norm is Quack's from 2.14 on."""
    if importlib.util.find_spec("quack") is None:
        return None
    forward = importlib.import_module("quack.rmsnorm").rmsnorm_fwd
    offset = 1.0 if name.startswith("gemma") else 0.0

    def norm(x: torch.Tensor, w: torch.Tensor, residual: torch.Tensor | None = None) -> Tensors:
        out, total, _ = forward(x.flatten(0, -2), w, residual=residual, eps=EPS, weight_offset=offset)
        return out.view_as(x), total

    if name.endswith("fused_add_rmsnorm"):
        return lambda x, residual, w: norm(x, w, residual)
    if "qknorm" in name:
        return lambda q, k, q_weight, k_weight: (norm(q, q_weight)[0], norm(k, k_weight)[0])
    return None if name == "layernorm" else lambda x, w, *_: norm(x, w)[:1]  # its layernorm takes float32 weights


class Memory:
    """Memory for many calls, filled once."""

    def __init__(self, elements: int, dtype: torch.dtype) -> None:
        self._whole = torch.empty(elements, dtype=dtype, device="cuda").normal_()

    def calls(self, op: Op, tokens: int, place: Place) -> tuple[list[Tensors], list[Tensors]]:
        """The arguments of each call, and of a plain copy that reads and writes as many bytes. Calls share weights."""
        shapes, each = op.shapes(tokens, *place), op.elements(tokens, place)
        count = max(LEAST_CALLS, min(MOST_CALLS, ROTATED // (each * self._whole.element_size())))
        parts = self._whole[: min(count, self._whole.numel() // each) * each].view(-1, each)
        weights = [self._whole.new_empty(shape).normal_() for shape in shapes if len(shape) == 1]
        calls = []
        for part in parts:
            pieces = iter(part.split([math.prod(shape) for shape in shapes if len(shape) > 1]))
            shared = iter(weights)
            calls.append(tuple(next(shared) if len(shape) == 1 else next(pieces).view(shape) for shape in shapes))
        if op.in_place:  # a copy to the memory of a call that is far away: what was written last is in the last cache
            return calls, [(part, parts[(i + len(parts) // 2) % len(parts)]) for i, part in enumerate(parts)]
        return calls, [tuple(part.view(2, -1)) for part in parts]


def check(op: Op, run: Run, memory: Memory, place: Place) -> None:
    """Check that a kernel computes the op: a figure of another computation would mean nothing."""
    arguments = [tensor.clone() for tensor in memory.calls(op, 8, place)[0][0]]
    expected = op.pytorch(*(tensor.double() for tensor in arguments))
    returned = run(*arguments)
    got = returned if isinstance(returned, tuple) else tuple(arguments[i] for i in op.results)
    for one, wanted in zip(got, expected, strict=True):
        assert (one - wanted).norm() <= 0.02 * wanted.norm(), (op, place)


def compiled(op: Op) -> Callable[..., Tensors]:
    """The op under torch.compile, as a user's first call of it in a process."""
    torch.compiler.reset()  # else a second size would make the size symbolic
    return torch.compile(op.pytorch)


def warm(case: tuple[str, Place, str]) -> None:
    """Fill the caches of torch.compile and of Quack on disk. In a process of its own."""
    name, place, dtype = case
    op = OPS[name]
    memory = Memory(op.elements(32, place), getattr(torch, dtype))
    run = compiled(op)
    for tokens in (1, 8, 32):  # one token is a case of its own to it, and the second other number makes it symbolic
        run(*memory.calls(op, tokens, place)[0][0])
    theirs = quack(name)
    if theirs is not None:
        takes("Quack", name, theirs, memory, place)


def runs_of(name: str, place: Place, peer: Run | None, memory: Memory) -> dict[str, Run]:
    """The compared kernels by the names of the columns, each checked."""
    op = OPS[name]
    runs: dict[str, Run] = {"sgljit": getattr(ops["norm"], name)}
    if peer is not None:
        runs["SGLang"] = peer
    theirs = quack(name)
    if theirs is not None:
        runs["Quack"] = theirs
    runs |= {"torch.compile": compiled(op), "PyTorch": op.pytorch}
    return {other: run for other, run in runs.items() if takes(other, name, run, memory, place)}


def takes(other: str, name: str, run: Run, memory: Memory, place: Place) -> bool:
    """Whether a kernel takes such rows; ours takes all."""
    try:
        check(OPS[name], run, memory, place)
    except RuntimeError as error:
        if other == "sgljit":
            raise
        sys.stderr.write(f"{other} does not take {place} of {name}: {str(error).strip().splitlines()[-1]}\n")
        return False
    return True


def cells(name: str, dtype_name: str, tokens: list[int], peers: Mapping[Any, Run | None]) -> Iterator[dict[str, Any]]:
    """A row for each cell: microseconds of a call by kernel."""
    op, dtype = OPS[name], getattr(torch, dtype_name)
    places = places_of(name, dtype_name)
    tokens = [count for count in tokens if dtype_name == "bfloat16" or count in FEWER_TOKENS]
    most = max((op.elements(max(tokens), place) for place in places), default=0)
    memory = Memory(max(LEAST_CALLS * most, ROTATED // dtype.itemsize), dtype)
    for place in places:
        runs = runs_of(name, place, peers.get((name, place)) if dtype == torch.bfloat16 else None, memory)
        for count in tokens:
            calls, copies = memory.calls(op, count, place)
            graphs = {other: graph_of(run, calls) for other, run in runs.items()}
            graphs["copy"] = graph_of(copy, copies)
            times = microseconds(graphs, len(calls))
            num_bytes = (2 if op.in_place else 1) * op.elements(count, place) * dtype.itemsize
            row = {"op": name, "dtype": dtype_name, "size": " x ".join(map(str, place)), "tokens": count}
            yield {**row, "bytes": num_bytes, **times, "models": open_models.models_of(place, op.models)}


def copy(source: torch.Tensor, to: torch.Tensor) -> None:
    """A plain copy, in pieces if it would be slow at once."""
    pieces = 1 + source.nbytes // SLOW
    for piece, place in zip(source.view(-1).chunk(pieces), to.view(-1).chunk(pieces), strict=True):
        place.copy_(piece)


def ratio_of(row: dict[str, Any]) -> float:
    """Our time divided by the best of the others."""
    return float(row["sgljit"] / min(row[name] for name in OTHERS if name in row))


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The line of an op in the first table."""
    ratios = sorted((ratio_of(row), row["size"], row["tokens"]) for row in rows)
    worst = ratios[-1]
    large = [100 * row["copy"] / row["sgljit"] for row in rows if row["bytes"] >= LARGE and "copy" in row]
    line = {"op": rows[0]["op"], "dtype": rows[0]["dtype"], "cells": str(len(rows))}
    line |= {"median": f"{statistics.median(ratio for ratio, *_ in ratios):.2f}"}
    line |= {"above 1.02": str(sum(ratio > 1.02 for ratio, *_ in ratios))}
    line |= {"worst": f"{worst[0]:.2f} at {worst[1]}, {worst[2]} tokens"}
    return {**line, "least % of a copy, from 16 MiB on": f"{min(large):.0f}" if large else ""}


def matrix(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The ratios of an op: a line for each size, a column for each number of tokens."""
    lines: dict[str, dict[str, Any]] = {}
    for row in rows:
        line = lines.setdefault(row["size"], {"size": row["size"]})
        line[str(row["tokens"])] = f"{ratio_of(row):.2f}"
    for row in rows:
        lines[row["size"]]["models"] = row["models"]
    return list(lines.values())


NOTE = """Our time divided by the best of the others', so that below 1 is faster: SGLang's kernels (rmsnorm, fused add \
up to 8192, queries and keys), {quack}torch.compile with its defaults, and PyTorch. All in turns, \
in CUDA graphs of up to 256 calls, on memory that rotates: 128 MiB, or four calls of the largest; calls on few tokens \
find part of it in the last cache, as in a model. "Copy" reads and writes as many bytes. Neighbouring cells differ by \
up to 0.02 from run to run. All times are in [{csv}]({csv})."""


def write_page(output: Path, rows: list[dict[str, Any]]) -> None:
    """The page, its heat maps, and the CSV file."""
    groups = {key: list(of) for key, of in itertools.groupby(rows, lambda row: (row["op"], row["dtype"]))}
    tables: dict[str, list[dict[str, Any]]] = {"": [summary(of) for of in groups.values()]}
    plots = {}
    for (op, dtype), of in groups.items():
        title = f"{op}, {dtype}"
        tables[title] = matrix(of)
        if dtype == "bfloat16":
            picture = output.with_name(f"{output.stem}_{op}.svg")
            cells_of = [{**row, "ratio": ratio_of(row)} for row in of]
            write_heat_map(picture, cells_of, x="tokens", y="size", value="ratio", title=f"{title}: ours / best other")
            plots[title] = Path(picture.name)
    numbers = output.with_suffix(".csv")
    with numbers.open("w", newline="") as file:
        columns = ["op", "dtype", "size", "tokens", "bytes", "sgljit", *OTHERS, "copy"]
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: round(v, 3) if isinstance(v, float) else v for name, v in row.items()} for row in rows)
    quack = "Quack's (but layernorm), " if any("Quack" in row for row in rows) else ""
    note = NOTE.format(csv=numbers.name, quack=quack)
    write_results(output, "Normalisation over the sizes of open models", tables, note=note, plots=plots)


def main() -> None:
    """Measure, print, and write the page and its plots."""
    parser = argparse.ArgumentParser(description="Time of the norm family's ops over the sizes of open models")
    parser.add_argument("--ops", default=",".join(OPS), help="which, with commas between")
    parser.add_argument("--dtypes", default="bfloat16,float16,float32", help="which, with commas between")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)), help="which, with commas between")
    parser.add_argument("--peers", type=Path, help="a folder with peers.py")
    parser.add_argument("--compilers", type=int, default=8, help="processes that fill torch.compile's cache")
    parser.add_argument("--json", type=Path, help="write the numbers here, after each op")
    parser.add_argument("--output", type=Path, help="write the page here, and what belongs to it beside it")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    names = arguments.ops.split(",")
    dtypes = arguments.dtypes.split(",")
    cases = [(name, place, dtype) for dtype in dtypes for name in names for place in places_of(name, dtype)]
    peers: dict[Any, Run | None] = {}
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else each of the processes starts one for each core
    with ProcessPoolExecutor(arguments.compilers, multiprocessing.get_context("spawn")) as pool:
        warmed = [pool.submit(warm, case) for case in cases]
        if arguments.peers is not None:
            sys.path.insert(0, str(arguments.peers))
            kernels = importlib.import_module("peers").Peers(arguments.peers.resolve())
            wanted = [(name, place) for name in names for place in places_of(name, "bfloat16")]
            with ThreadPoolExecutor() as threads:  # ten seconds each
                found = threads.map(lambda key: sglang(kernels, *key), wanted)
                peers = dict(zip(wanted, found, strict=True))
        for one in warmed:
            one.result()
    tokens = [int(count) for count in arguments.tokens.split(",")]
    rows: list[dict[str, Any]] = []
    for dtype, name in itertools.product(dtypes, names):
        of_op = list(cells(name, dtype, tokens, peers))
        if not of_op:
            continue
        rows += of_op
        sys.stdout.write(f"{summary(of_op)}\n")
        sys.stdout.flush()
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(rows))
        if arguments.output is not None:  # after each op: what is measured is not lost
            write_page(arguments.output, rows)


if __name__ == "__main__":
    main()
