"""How fast are the ops of the family against SGLang's kernels, torch.compile and PyTorch?

    python -m sgljit_moe.bench [--device cpu|cuda] [--ops OPS] [--short] [--peers DIR] [--output FILE]

Gates of float32, rows of bfloat16, renormalised weights; the experts of models. SGLang's kernels are measured from
``--peers``, a folder with a ``peers.py`` that offers them; of several for one shape the fastest counts. torch.compile
compiles each shape, which takes it some seconds: all shapes take minutes, so ``--short`` measures fewer numbers of
tokens. The bytes of a call are those that are read and written. With CI set in the environment: one small shape for
each op.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sgljit_core import ops
from sgljit_tools.benchmark import Figure, get_benchmark_range, measure
from sgljit_tools.benchmark.results import sweep, write_results

NOTE = (
    "Microseconds per call, median; in brackets, the percent of a plain copy that moves as many bytes. PyTorch's calls "
    "of up to 1 MB find their data in the last cache, but for `moe_sum`, and so do torch.compile's."
)
NOTE_OF_PEERS = (
    "SGLang's CUDA kernels, the fastest of those that serve a row: `topk_sigmoid` and, with 256 or 384 experts, "
    "`kimi_k2_moe_fused_gate`; `moe_align_block_size` and, for one token, `align_single_token`; `torch.sort` before "
    "`moe_permute_prepare`. For groups and for `topk_sqrtsoftplus` it has only a Triton kernel, which is not measured."
)
TOKENS = {"cuda": (1, 8, 64, 512, 4096, 16384), "cpu": (1, 64, 1024)}
FEW_TOKENS = {"cuda": (1, 64, 4096), "cpu": (64,)}
# Experts of a model and of a token, groups, and how many of these: Qwen3-MoE and gpt-oss; DeepSeek V3, Kimi K2, GLM-4.5
# and MiniMax M2; DeepSeek V4.
MODELS = {
    "topk_softmax": ((128, 8, 1, 1), (32, 4, 1, 1)),
    "topk_sigmoid": ((256, 8, 8, 4), (384, 8, 1, 1), (160, 8, 1, 1), (256, 8, 1, 1)),
    "topk_sqrtsoftplus": ((256, 6, 1, 1),),
}
SCORES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "topk_softmax": lambda gates: gates.softmax(-1),
    "topk_sigmoid": torch.sigmoid,
    "topk_sqrtsoftplus": lambda gates: torch.nn.functional.softplus(gates).sqrt(),
}

# Experts of a token, and the hidden size: Qwen3-MoE and DeepSeek V3.
SUMS = ((8, 4096), (8, 7168))

# Experts of a model and of a token, and the size of a block: Qwen3-MoE and DeepSeek V3.
ORDERS = ((128, 8, 64), (256, 8, 128))

# Experts of a model, the elements of a row and of its product, and what of a matrix is side by side: Qwen3-30B-A3B and
# gpt-oss-20b.
PRODUCTS = (
    (128, 2048, 1536, "rows"),
    (128, 768, 2048, "rows"),
    (32, 2880, 5760, "columns"),
    (32, 2880, 2880, "columns"),
)
ROWS = (1, 4, 8, 16, 64)
CHECKED = 9  # tokens whose weights are compared: of many, rounding may choose another expert of one


@dataclass(frozen=True)
class Bench:
    """Device, peers and numbers of tokens, for each table."""

    device: str
    peers: Any  # SGLang's kernels, or None
    tokens: tuple[int, ...]

    def providers(self, *, has_peer: bool = True) -> list[str]:
        """The columns. On the CPU torch.compile would time a C++ compiler's vectors."""
        from_sglang = ["SGLang"] if has_peer and self.peers is not None else []
        return ["sgljit", *from_sglang, "PyTorch", *(["torch.compile"] if self.device == "cuda" else [])]

    def sweep(
        self, run: Callable[..., Figure | float], shape: list[str], sizes: Iterable[tuple[int, ...]], names: list[str]
    ) -> list[dict[str, Any]]:
        """A row for each model and number of tokens."""
        places = [(tokens, *of_model) for of_model in sizes for tokens in self.tokens]
        return sweep(run, ["tokens", *shape], get_benchmark_range(places, places[1:2]), names)


def plain(op: str, groups: int, topk_group: int) -> Callable[..., None]:
    """The op in plain PyTorch."""

    def run(weights: Any, ids: Any, gates: Any, bias: Any) -> None:
        scores = SCORES[op](gates.float())
        choice = scores if bias is None else scores + bias
        if topk_group < groups:
            grouped = choice.unflatten(-1, (groups, -1))
            best = grouped.topk(2, dim=-1).values.sum(-1).topk(topk_group, dim=-1).indices
            inside = torch.zeros(grouped.shape[:-1], dtype=torch.bool, device=gates.device).scatter_(-1, best, True)
            choice = grouped.masked_fill(~inside[..., None], -torch.inf).flatten(-2)
        chosen = choice.topk(weights.shape[-1], dim=-1).indices
        found = scores.gather(-1, chosen)
        weights.copy_(found / found.sum(-1, keepdim=True))
        ids.copy_(chosen)

    return run


def make(op: str, tokens: int, experts: int, k: int, device: str) -> tuple[Any, ...]:
    """Weights, ids, gates and, but for softmax, a bias."""
    gates = torch.randn(tokens, experts, device=device)
    bias = torch.randn(experts, device=device) / 4 if op != "topk_softmax" else None
    ids = torch.empty(tokens, k, dtype=torch.int32, device=device)
    return torch.empty(tokens, k, device=device), ids, gates, bias


def ours(op: str, groups: int, topk_group: int) -> Callable[..., None]:
    """The op itself."""

    def run(weights: Any, ids: Any, gates: Any, bias: Any) -> None:
        options = {"correction_bias": bias, "num_expert_group": groups, "topk_group": topk_group}
        getattr(ops["moe"], op)(weights, ids, gates, True, **options)

    return run


def compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A formula by torch.compile, whose earlier shapes are forgotten: each is compiled separately."""
    torch.compiler.reset()
    return torch.compile(kernel, dynamic=False)


def fastest(
    kernels: Iterable[Callable[..., Any]], make: Callable[[], tuple[Any, ...]], num_bytes: int, provider: str
) -> Figure | float:
    """The figure of the fastest kernel of a provider; NaN without one.

    On data from memory, but for PyTorch and torch.compile: many kernels for each call would make graphs of 200,000.
    """
    inputs = [make() for _ in range(64)] if provider in ("PyTorch", "torch.compile") else make
    figures = [measure(kernel, inputs, num_bytes=num_bytes, seconds=0.03) for kernel in kernels]
    return min(figures, key=lambda figure: figure.microseconds, default=math.nan)


def sglang(peers: Any, op: str, experts: int, groups: int) -> list[Callable[..., None]]:
    """SGLang's kernels for an op."""
    if groups > 1:
        return []
    kernels = [peers.topk(op.removeprefix("topk_"))]
    kernels += [peers.kimi_k2_gate()] if op == "topk_sigmoid" and experts in (256, 384) else []
    return [functools.partial(scaled_by_one, kernel) for kernel in kernels]


def scaled_by_one(kernel: Callable[..., None], *arguments: Any) -> None:
    """A kernel of SGLang's that takes a scale."""
    kernel(*arguments, 1.0)


def table(op: str, bench: Bench) -> list[dict[str, Any]]:
    """One table: rows by shape, columns by provider."""

    def run(tokens: int, experts: int, k: int, groups: int, topk_group: int, provider: str) -> Figure | float:
        reference = plain(op, groups, topk_group)
        if provider == "SGLang":
            kernels = sglang(bench.peers, op, experts, groups)
        elif provider == "sgljit":
            kernels = [ours(op, groups, topk_group)]
        else:
            kernels = [reference if provider == "PyTorch" else compiled(reference)]
        for kernel in kernels:
            check(kernel, reference, make(op, tokens, experts, k, bench.device))
        num_bytes = tokens * (4 * experts + 8 * k)
        return fastest(kernels, lambda: make(op, tokens, experts, k, bench.device), num_bytes, provider)

    names = bench.providers(has_peer=op != "topk_sqrtsoftplus")
    return bench.sweep(run, ["experts", "k", "groups", "topk_group"], MODELS[op], names)


def plain_sum(rows: Any, output: Any) -> None:
    """``moe_sum`` in plain PyTorch."""
    torch.sum(rows, 1, out=output)


def table_of_sums(bench: Bench) -> list[dict[str, Any]]:
    """The same for ``moe_sum``."""

    def make(tokens: int, k: int, hidden: int) -> tuple[Any, ...]:
        rows = torch.randn(tokens, k, hidden, device=bench.device).bfloat16()
        return rows, torch.empty(tokens, hidden, device=bench.device, dtype=torch.bfloat16)

    def run(tokens: int, k: int, hidden: int, provider: str) -> Figure | float:
        if provider == "SGLang":
            kernel = bench.peers.topk_sum()
        elif provider == "sgljit":
            kernel = ops["moe"].moe_sum
        else:
            kernel = plain_sum if provider == "PyTorch" else compiled(plain_sum)
        rows, output = make(9, k, hidden)
        kernel(rows, output)
        torch.testing.assert_close(output, rows.float().sum(1).bfloat16())
        num_bytes = 2 * tokens * hidden * (k + 1)
        return measure(kernel, lambda: make(tokens, k, hidden), num_bytes=num_bytes, seconds=0.03)

    return bench.sweep(run, ["k", "hidden"], SUMS, bench.providers())


def plain_align(ids: Any, experts: int, block_size: int, sorted_ids: Any, block_experts: Any, padded: Any) -> None:
    """``moe_align_block_size`` in plain PyTorch."""
    flat, order = ids.flatten().long().sort(stable=True)
    counts = torch.zeros(experts, dtype=torch.int64, device=ids.device).scatter_add_(0, flat, torch.ones_like(flat))
    blocks = (counts + block_size - 1) // block_size
    behind = blocks.cumsum(0)
    shifts = (behind - blocks) * block_size - (counts.cumsum(0) - counts)
    sorted_ids.fill_(len(flat))
    sorted_ids[torch.arange(len(flat), device=ids.device) + shifts[flat]] = order.int()
    found = torch.searchsorted(behind, torch.arange(len(block_experts), device=ids.device), right=True)
    block_experts.copy_(found.where(found < experts, -1))
    padded.copy_(behind[-1:] * block_size)


def sglang_align(peers: Any, tokens: int) -> list[Callable[..., None]]:
    """SGLang's kernels for the order in blocks."""
    if tokens > 1:
        return [peers.moe_align()]
    single = peers.moe_align_single()
    return [peers.moe_align(), lambda ids, _experts, *others: single(ids, *others)]


def table_of_orders(bench: Bench) -> list[dict[str, Any]]:
    """The same for ``moe_align_block_size``."""

    def make(tokens: int, experts: int, k: int, block_size: int) -> tuple[Any, ...]:
        ids = torch.rand(tokens, experts, device=bench.device).topk(k).indices.int()
        blocks = min(tokens * k, experts + (tokens * k - experts) // block_size)
        sizes = (blocks * block_size, blocks, 1)
        return ids, experts, block_size, *(torch.empty(size, dtype=torch.int32, device=bench.device) for size in sizes)

    def run(tokens: int, experts: int, k: int, block_size: int, provider: str) -> Figure | float:
        if provider == "SGLang":
            kernels = sglang_align(bench.peers, tokens)
        elif provider == "sgljit":
            kernels = [ops["moe"].moe_align_block_size]
        else:
            kernels = [plain_align if provider == "PyTorch" else compiled(plain_align)]
        arguments = make(tokens, experts, k, block_size)
        for kernel in kernels:
            check_order(kernel, arguments, block_size)
        num_bytes = 4 * sum(x.numel() for x in arguments if isinstance(x, torch.Tensor))
        return fastest(kernels, lambda: make(tokens, experts, k, block_size), num_bytes, provider)

    return bench.sweep(run, ["experts", "k", "block_size"], ORDERS, bench.providers())


def check_order(run: Callable[..., None], arguments: tuple[Any, ...], block_size: int) -> None:
    """The same of an order. SGLang's may have an expert's pairs in any order, and leaves unused blocks as they are."""
    sorted_ids, block_experts, padded = wanted = [torch.empty_like(output) for output in arguments[3:]]
    plain_align(*arguments[:3], *wanted)
    for output in arguments[3:]:
        output.fill_(-9)  # of an earlier kernel
    run(*arguments)
    end = int(padded)
    assert torch.equal(arguments[5], padded)
    assert torch.equal(arguments[4][: end // block_size], block_experts[: end // block_size])
    in_blocks = [ids[:end].view(-1, block_size).sort().values for ids in (arguments[3], sorted_ids)]
    assert torch.equal(*in_blocks)


def plain_sort(ids: Any, pairs: Any, expert_ids: Any, places: Any, ends: Any) -> None:
    """``sort_by_expert`` in plain PyTorch, as models compute it."""
    found, order = ids.flatten().sort(stable=True)
    pairs.copy_(order)
    expert_ids.copy_(found)
    places[order] = torch.arange(len(order), dtype=torch.int32, device=ids.device)
    wide = found if ids.is_cuda else found.float()  # histc on the CPU
    torch.cumsum(torch.histc(wide, len(ends), 0, len(ends) - 1), 0, out=ends)


def sglang_sort(peers: Any) -> Callable[..., tuple[Any, ...]]:
    """SGLang's way to the same: PyTorch's sort, whose results are the first two, and a kernel for the others."""
    prepare = peers.moe_permute_prepare()

    def run(ids: Any, _pairs: Any, _expert_ids: Any, places: Any, ends: Any) -> tuple[Any, ...]:
        expert_ids, pairs = ids.flatten().sort(stable=True)
        bounds = ends.new_empty(len(ends) + 1)
        prepare(expert_ids, pairs, bounds, places)
        return pairs, expert_ids, places, bounds[1:]

    return run


def table_of_sorts(bench: Bench) -> list[dict[str, Any]]:
    """The same for ``sort_by_expert``."""

    def make(tokens: int, experts: int, k: int) -> tuple[Any, ...]:
        ids = torch.rand(tokens, experts, device=bench.device).topk(k).indices.int()
        sizes = (tokens * k, tokens * k, tokens * k, experts)
        return ids, *(torch.empty(size, dtype=torch.int32, device=bench.device) for size in sizes)

    def run(tokens: int, experts: int, k: int, provider: str) -> Figure | float:
        kernel: Callable[..., Any]
        if provider == "SGLang":
            kernel = sglang_sort(bench.peers)
        elif provider == "sgljit":
            kernel = ops["moe"].sort_by_expert
        else:
            kernel = plain_sort if provider == "PyTorch" else compiled(plain_sort)
        (ids, *outputs), wanted = make(tokens, experts, k), make(tokens, experts, k)[1:]
        found = kernel(ids, *outputs) or outputs
        plain_sort(ids, *wanted)
        assert all(torch.equal(got.int(), want) for got, want in zip(found, wanted, strict=True))
        num_bytes = 4 * sum(x.numel() for x in (ids, *outputs))
        return fastest([kernel], lambda: make(tokens, experts, k), num_bytes, provider)

    return bench.sweep(run, ["experts", "k"], [sizes[:2] for sizes in ORDERS], bench.providers())


def plain_matvec(x: Any, weight: Any, ids: Any, _ends: Any, _output: Any) -> Any:
    """``expert_matvec`` in plain PyTorch, which copies the matrices."""
    return torch.bmm(weight[ids], x[..., None])[..., 0]


def our_matvec(x: Any, weight: Any, ids: Any, _ends: Any, output: Any) -> Any:
    """The op itself."""
    ops["moe"].expert_matvec(x, weight, ids, output)
    return output


def grouped_product(x: Any, weight: Any, _ids: Any, ends: Any, _output: Any) -> Any:
    """The same by PyTorch's grouped product, whose rows are in the order of their experts."""
    return torch.nn.functional.grouped_mm(x, weight.transpose(1, 2), offs=ends)


def table_of_products(bench: Bench) -> list[dict[str, Any]]:
    """The same for ``expert_matvec``: each call takes other experts of one model."""

    def make(rows: int, experts: int, size: int, product: int, layout: str) -> list[tuple[Any, ...]]:
        experts = experts if bench.device == "cuda" else 2
        shape = (product, size) if layout == "rows" else (size, product)
        weight = torch.randn(experts, *shape, device=bench.device, dtype=torch.bfloat16)
        weight = weight if layout == "rows" else weight.transpose(1, 2)
        found = []
        for _ in range(24):
            tokens = torch.rand(math.ceil(rows / 4), experts, device=bench.device)
            ids = tokens.topk(min(4, experts)).indices.flatten().repeat(4)[:rows].sort().values
            ends = ids.bincount(minlength=experts).cumsum(0).int()
            x, output = (torch.randn(rows, n, device=bench.device).bfloat16() for n in (size, product))
            found.append((x, weight, ids, ends, output))
        return found

    def run(rows: int, experts: int, size: int, product: int, layout: str, provider: str) -> Figure | float:
        inputs = make(rows, experts, size, product, layout)
        kernel: Callable[..., Any]
        if provider in ("sgljit", "grouped product"):
            kernel = our_matvec if provider == "sgljit" else grouped_product
        else:
            kernel = plain_matvec if provider == "PyTorch" else compiled(plain_matvec)
        x, weight, ids, _ends, output = inputs[0]
        found = kernel(*inputs[0]).float()
        wanted = (weight[ids].float() @ x.float()[..., None])[..., 0]
        torch.testing.assert_close(found, wanted, rtol=2**-6, atol=2**-6 * float(wanted.abs().max()))
        num_bytes = 2 * (len(ids.unique()) * size * product + x.numel() + output.numel())
        return measure(kernel, inputs, num_bytes=num_bytes, seconds=0.03)

    ours, *others = bench.providers(has_peer=False)
    names = [ours, *(["grouped product"] if bench.device == "cuda" else []), *others]
    places = [(rows, *sizes) for sizes in PRODUCTS for rows in ROWS]
    shape = ["rows", "experts", "size", "product", "layout"]
    return sweep(run, shape, get_benchmark_range(places, places[1:2]), names)


def check(run: Callable[..., None], reference: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Check that a kernel computes the op: a figure of another computation would mean nothing."""
    weights, ids, *rest = arguments
    wanted = torch.empty_like(weights)
    reference(wanted, ids.clone(), *rest)
    run(weights, ids, *rest)
    # Gates may be equal: their ids are in any order.
    torch.testing.assert_close(weights[:CHECKED], wanted[:CHECKED], rtol=1e-3, atol=1e-6)


MAKERS: dict[str, Callable[[Bench], list[dict[str, Any]]]] = {
    **{op: functools.partial(table, op) for op in MODELS},
    "moe_sum": table_of_sums,
    "moe_align_block_size": table_of_orders,
    "sort_by_expert": table_of_sorts,
    "expert_matvec": table_of_products,
}


def main() -> None:
    """Measure, print the page, and write it."""
    parser = argparse.ArgumentParser(description="Time of the kernels of mixture-of-experts layers")
    parser.add_argument("--device", choices=list(TOKENS), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--ops", default=",".join(MAKERS), help="which, with commas between")
    parser.add_argument("--short", action="store_true", help="fewer numbers of tokens")
    parser.add_argument("--peers", type=Path, help="a folder with peers.py")
    parser.add_argument("--output", type=Path, help="write the page here")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    peers = None
    if arguments.peers is not None:
        sys.path.insert(0, str(arguments.peers))
        peers = importlib.import_module("peers").Peers(arguments.peers.resolve())
    bench = Bench(arguments.device, peers, (FEW_TOKENS if arguments.short else TOKENS)[arguments.device])
    note = NOTE if peers is None else f"{NOTE}\n{NOTE_OF_PEERS}"
    tables: dict[str, list[dict[str, Any]]] = {}
    for op in arguments.ops.split(","):
        tables[op] = MAKERS[op](bench)
        # A run may be cut short.
        page = write_results(arguments.output, "Mixture of experts", tables, note=note, device=arguments.device)
    sys.stdout.write(page)


if __name__ == "__main__":
    main()
