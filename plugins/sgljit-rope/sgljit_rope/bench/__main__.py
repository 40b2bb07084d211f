"""How fast are the ops of the family against SGLang's kernels, torch.compile and PyTorch?

    python -m sgljit_rope.bench [--device cpu|cuda] [--peers DIR] [--output FILE]

In bfloat16, 32 heads of queries and 8 of keys. SGLang's kernels are measured from ``--peers``, a folder with a
``peers.py`` that offers them; where it has no fused kernel, its kernels one after the other. The bytes of a call are
those of the heads that are read and written. With CI set in the environment: one small shape for each op.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import rms_norm

from sgljit_core import ops
from sgljit_rope import reference
from sgljit_tools.benchmark import Figure, get_benchmark_range, measure
from sgljit_tools.benchmark.results import sweep, write_results

Run = Callable[..., object]

HEADS, KV_HEADS, EPS = 32, 8, 1e-6
POSITIONS = 4096
SHAPES = {
    "cuda": [(tokens, size) for size in (64, 128, 256) for tokens in (1, 8, 64, 256, 1024, 4096, 16384)],
    "cpu": [(1, 128), (64, 128), (1024, 128)],
}
OPS = (
    "apply_rope_inplace",
    "apply_rotary_pos_emb_inplace",
    "apply_rotary_pos_emb",
    "apply_rope_inplace_with_kvcache",
    "fused_qk_norm_rope",
    "fused_qk_norm_rope_with_kvcache",
)


def make(op: str, tokens: int, size: int, device: str) -> tuple[torch.Tensor, ...]:
    """The arguments of a call, in the op's order."""
    q, k, v = (torch.randn(tokens, heads, size, device=device).bfloat16() for heads in (HEADS, KV_HEADS, KV_HEADS))
    caches = [torch.zeros(tokens + 1, KV_HEADS, size, device=device).bfloat16() for _ in "kv"]
    weights = [torch.rand(size, device=device).bfloat16() for _ in "qk"]
    angles = torch.rand(POSITIONS, size // 2, device=device) * 7
    cos_sin = torch.cat((angles.cos(), angles.sin()), -1)
    positions = torch.randint(0, POSITIONS, (tokens,), device=device)
    if op.startswith("apply_rotary_pos_emb"):
        cos, sin = (x.repeat(1, 2).bfloat16() for x in cos_sin[positions].chunk(2, dim=-1))
        if op.endswith("inplace"):
            return q, k, cos, sin
        q, k = (x[None].transpose(1, 2) for x in (q, k))
        return q, k, cos[None], sin[None], torch.zeros_like(q), torch.zeros_like(k)
    stored = op.endswith("kvcache")
    arguments = [q, k, *([v] if stored else []), *(weights if "norm" in op else []), *(caches if stored else [])]
    return (*arguments, cos_sin, positions, *([torch.randperm(tokens, device=device)] if stored else []))


def pytorch(op: str, *arguments: torch.Tensor) -> None:
    """The op in plain PyTorch: float32, and every token is stored; for ``apply_rotary_pos_emb`` as in transformers."""
    if op == "apply_rotary_pos_emb":
        transformers(*arguments)
        return
    stored, is_normed = op.endswith("kvcache"), "norm" in op
    q, k, *others = arguments
    first, second = others[-3:-1] if stored else others[-2:]
    if op == "apply_rotary_pos_emb_inplace":
        cos, sin = (x[:, None].float().chunk(2, dim=-1)[0] for x in (first, second))
    else:
        cos, sin = first[second][:, None].chunk(2, dim=-1)
    for i, x in enumerate((q, k)):
        values = x.float()
        if is_normed:
            weight = others[i + stored]
            values = rms_norm(values, weight.shape, weight.float(), EPS)
        a, b = values.chunk(2, dim=-1)
        x.copy_(torch.cat((a * cos - b * sin, b * cos + a * sin), -1))
    if stored:
        v, k_cache, v_cache, slots = others[0], *others[-5:-3], others[-1]
        k_cache[slots] = k
        v_cache[slots] = v


def transformers(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_out: torch.Tensor,
    k_out: torch.Tensor,
) -> None:
    """The formula of its models for the heads of a batch, rounded by each of PyTorch's kernels."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    for x, out in ((q, q_out), (k, k_out)):
        a, b = x.chunk(2, dim=-1)
        torch.add(x * cos, torch.cat((-b, a), dim=-1) * sin, out=out)


def sglang(peers: Any, op: str, size: int) -> Run:
    """SGLang's kernels for an op, neox."""
    rope = peers.rope(size, True)

    def fused(q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any, *others: Any) -> None:
        rope.fused(q, k, v, k_cache.flatten(1), v_cache.flatten(1), *others)

    after: Run = fused if op.endswith("kvcache") else rope.run
    if "norm" not in op:
        return after
    norm = peers.qknorm(size)
    first = 3 if op.endswith("kvcache") else 2  # the weights' place

    def chain(*arguments: torch.Tensor) -> None:
        norm(*arguments[:2], *arguments[first : first + 2], EPS)
        after(*arguments[:first], *arguments[first + 2 :])

    return chain


def check(op: str, run: Run, size: int, device: str) -> None:
    """Check that a kernel computes the op: a figure of another computation would mean nothing."""
    arguments = make(op, 9, size, device)
    wanted = [x.clone() for x in arguments]
    getattr(reference, op)(*wanted)
    run(*arguments)
    for got, want in zip(arguments, wanted, strict=True):
        assert (got.double() - want.double()).norm() <= 0.02 * want.double().norm(), (op, size)


def table(op: str, device: str, peers: Any) -> list[dict[str, Any]]:
    """One table: rows by shape, columns by provider."""
    has_peer = peers is not None and not op.startswith("apply_rotary_pos_emb")
    names = ["sgljit", *(["SGLang"] if has_peer else []), "PyTorch"]
    names += ["torch.compile"] if device == "cuda" else []  # on the CPU it would time a C++ compiler's vectors
    plain = functools.partial(pytorch, op)

    def run(tokens: int, size: int, provider: str) -> Figure | float:
        torch.compiler.reset()  # each shape is compiled separately
        if provider == "SGLang":
            kernel = sglang(peers, op, size)
        elif provider == "sgljit":
            kernel = getattr(ops["rope"], op)
        else:
            kernel = plain if provider == "PyTorch" else torch.compile(plain, dynamic=False)
        check(op, kernel, size, device)
        elements = tokens * size * (2 * (HEADS + KV_HEADS) + (3 * KV_HEADS if op.endswith("kvcache") else 0))
        return measure(kernel, lambda: make(op, tokens, size, device), num_bytes=2 * elements, seconds=0.03)

    places = get_benchmark_range(SHAPES[device], SHAPES[device][1:2])
    return sweep(run, ["tokens", "size"], places, names)


def main() -> None:
    """Measure, print the page, and write it."""
    parser = argparse.ArgumentParser(description="Time of rotary position embedding")
    parser.add_argument("--device", choices=list(SHAPES), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--ops", default=",".join(OPS), help="which, with commas between")
    parser.add_argument("--peers", type=Path, help="a folder with peers.py")
    parser.add_argument("--output", type=Path, help="write the page here")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    peers = None
    if arguments.peers is not None:
        sys.path.insert(0, str(arguments.peers))
        peers = importlib.import_module("peers").Peers(arguments.peers.resolve())
    tables = {op: table(op, arguments.device, peers) for op in arguments.ops.split(",")}
    note = "bfloat16. Microseconds per call, median; in brackets, the percent of a plain copy that moves as many bytes."
    sys.stdout.write(
        write_results(arguments.output, "Rotary position embedding", tables, note=note, device=arguments.device)
    )


if __name__ == "__main__":
    main()
