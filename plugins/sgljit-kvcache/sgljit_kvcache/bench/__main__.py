"""How fast are the ops of the family against SGLang's kernels, torch.compile and PyTorch?

    python -m sgljit_kvcache.bench [--device cpu|cuda] [--peers DIR] [--output FILE]

In bfloat16, 8 heads of keys and of values; latent rows of 512 and 64 elements, 128 heads of latent queries and keys.
SGLang's stores are measured from ``--peers``, a folder with a ``peers.py`` that offers them, its concatenations if
sgl_kernel is installed, and vLLM's store to blocks if that is. Blocks have 16 places, heads first. One token is
appended to windows of gpt-oss, of Gemma 3 and of a longer one, as in a step of decoding; PyTorch does it as
transformers, which rolls, writes the token and copies. The bytes of a call are those that are read and written. With CI
set in the environment: one small shape for each op.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sgljit_core import ops
from sgljit_kvcache import reference
from sgljit_tools.benchmark import Figure, get_benchmark_range, measure
from sgljit_tools.benchmark.results import sweep, write_results

Run = Callable[..., object]

HEADS = 8
TOKENS = {"cuda": (1, 8, 64, 256, 1024, 4096, 16384), "cpu": (1, 64, 1024)}
SHAPES = {device: [(tokens, size) for size in (64, 128, 256) for tokens in of] for device, of in TOKENS.items()}
OTHER_SIZES = [(tokens, size) for size in (80, 96, 192) for tokens in (1, 64, 1024)]  # of heads, for store_cache
LATENT, ROTATED, UNABSORBED, LATENT_HEADS = 512, 64, 128, 128
WINDOWS = ((128, 8, 64), (1024, 4, 256), (4096, 8, 128))  # rows, heads and the size of a row
TOKENS_OF_WINDOWS = {"cuda": (1, 8, 64), "cpu": (1, 8)}
CONCATENATIONS = ("concat_mla_q", "concat_mla_k")
OF_LATENTS = ("set_mla_kv_buffer", "set_mla_kv_buffer_fp8", *CONCATENATIONS)
BLOCKS, BLOCK_SIZE = "store_cache in blocks", 16
OPS = ("store_cache", BLOCKS, "gather_cache", *OF_LATENTS, "append_to_window")
OF_SGLANG = ("store_cache", "set_mla_kv_buffer")


def make(op: str, tokens: int, size: int, device: str) -> tuple[torch.Tensor, ...]:
    """The arguments of a call, in the op's order."""
    slots = torch.randperm(tokens, device=device)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(tokens, *shape, device=device).bfloat16()

    if op in CONCATENATIONS:
        heads, nope = LATENT_HEADS, LATENT if op == "concat_mla_q" else UNABSORBED
        rope = random(heads if op == "concat_mla_q" else 1, ROTATED)
        return random(heads, nope + ROTATED), random(heads, nope), rope
    if op == "set_mla_kv_buffer_fp8":
        buffer = torch.zeros(tokens, 1, 656, dtype=torch.uint8, device=device)
        return buffer, slots, random(1, LATENT), random(1, ROTATED)
    if op == "set_mla_kv_buffer":
        return random(1, LATENT + ROTATED), slots, random(1, LATENT), random(1, ROTATED)
    k, v, k_cache, v_cache = (random(HEADS, size) for _ in range(4))
    if op == BLOCKS:
        shape = (-(-tokens // BLOCK_SIZE), HEADS, BLOCK_SIZE, size)
        k_cache, v_cache = (torch.zeros(shape, dtype=k.dtype, device=device) for _ in "kv")
        return k, v, k_cache, v_cache, slots
    return (k, v, k_cache, v_cache, slots) if op == "store_cache" else (k_cache, v_cache, slots, k, v)


def store_cache(k: Any, v: Any, k_cache: Any, v_cache: Any, indices: Any) -> None:
    """The op in plain PyTorch; no token is skipped."""
    k_cache[indices] = k
    v_cache[indices] = v


def store_in_blocks(k: Any, v: Any, k_cache: Any, v_cache: Any, indices: Any) -> None:
    """The same to blocks."""
    for x, cache in ((k, k_cache), (v, v_cache)):
        cache.transpose(1, 2)[indices // BLOCK_SIZE, indices % BLOCK_SIZE] = x


def gather_cache(k_cache: Any, v_cache: Any, indices: Any, k: Any, v: Any) -> None:
    """The op in plain PyTorch."""
    k.copy_(k_cache[indices])
    v.copy_(v_cache[indices])


def set_mla_kv_buffer(kv_buffer: Any, loc: Any, k_nope: Any, k_rope: Any) -> None:
    """The op in plain PyTorch."""
    kv_buffer[loc] = torch.cat((k_nope, k_rope), -1)


def set_mla_kv_buffer_fp8(kv_buffer: Any, loc: Any, k_nope: Any, k_rope: Any) -> None:
    """The op in plain PyTorch; every value is finite."""
    groups = k_nope.flatten(1).float().unflatten(-1, (4, 128))
    largest = groups.abs().amax(-1)
    scale = (largest / torch.full_like(largest, 448)).clamp(min=2.0**-126)
    q = (groups * scale.reciprocal()[..., None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    rows = torch.cat([part.view(torch.uint8) for part in (q.flatten(1), scale, k_rope.flatten(1))], -1)
    kv_buffer.view(torch.uint8)[loc] = rows.view(-1, *kv_buffer.shape[1:])


def append_to_window(k_cache: Any, v_cache: Any, k: Any, v: Any) -> None:
    """The op in plain PyTorch."""
    for cache, x in ((k_cache, k), (v_cache, v)):
        moved = cache.roll(-x.shape[2], dims=2)
        moved[:, :, -x.shape[2] :] = x
        cache.copy_(moved)


PYTORCH: dict[str, Run] = {
    "store_cache": store_cache,
    BLOCKS: store_in_blocks,
    "gather_cache": gather_cache,
    "set_mla_kv_buffer": set_mla_kv_buffer,
    "set_mla_kv_buffer_fp8": set_mla_kv_buffer_fp8,
    "concat_mla_q": reference.concat_mla_q,
    "concat_mla_k": reference.concat_mla_k,
    "append_to_window": append_to_window,
}


def sglang(peers: Any, op: str, size: int) -> Run:
    """SGLang's store of keys and values, or of latent rows."""
    if op == "set_mla_kv_buffer":
        latent = peers.set_mla_kv_buffer(2 * LATENT, 2 * ROTATED)
        return lambda kv_buffer, slots, *parts: latent(kv_buffer.flatten(1), slots, *(x.flatten(1) for x in parts))
    kernel = peers.store(2 * HEADS * size)

    def store(k: Any, v: Any, k_cache: Any, v_cache: Any, slots: Any) -> None:
        kernel(*(x.flatten(1) for x in (k, v, k_cache, v_cache)), slots, k_cache.shape[0], -1)

    return store


def sgl_kernel(op: str) -> Run:
    """SGLang's concatenations."""
    package = importlib.import_module("sgl_kernel")

    def concat_mla_q(q: Any, q_nope: Any, q_rope: Any) -> None:
        torch.ops.sgl_kernel.concat_mla_absorb_q(q_nope, q_rope, q)

    return concat_mla_q if op == "concat_mla_q" else package.concat_mla_k


def vllm() -> Run:
    """The store of vLLM to blocks of any strides, whose scales a store in bfloat16 does not read."""
    kernel = importlib.import_module("vllm._custom_ops").reshape_and_cache_flash

    def store(k: Any, v: Any, k_cache: Any, v_cache: Any, slots: Any) -> None:
        scale = k.new_empty(1, dtype=torch.float32)
        kernel(k, v, k_cache.transpose(1, 2), v_cache.transpose(1, 2), slots, "auto", scale, scale)

    return store


def check(op: str, run: Run, arguments: tuple[torch.Tensor, ...]) -> None:
    """Check that a kernel computes the op: a figure of another computation would mean nothing."""
    wanted = [x.clone() for x in arguments]
    PYTORCH[op](*wanted)
    run(*arguments)
    for got, want in zip(arguments, wanted, strict=True):
        if op == "set_mla_kv_buffer_fp8":  # a compiler divides by other instructions: few bytes then differ by one
            assert (got.view(torch.uint8) != want.view(torch.uint8)).float().mean() < 0.02, op
        else:
            assert torch.equal(got, want), op


def provided(op: str, provider: str) -> Run:
    """The op by one of those that have all ops."""
    if provider == "torch.compile":
        return torch.compile(PYTORCH[op], dynamic=False)
    own: Run = functools.partial(ops["kvcache"].store_cache, heads_first=True)
    if op != BLOCKS:
        own = getattr(ops["kvcache"], op)
    return own if provider == "sgljit" else PYTORCH[op]


def from_pytorch(device: str) -> list[str]:
    """PyTorch itself and its compiler; on the CPU that would time a C++ compiler's vectors."""
    return ["PyTorch", *(["torch.compile"] if device == "cuda" else [])]


def table(op: str, device: str, peers: Any) -> list[dict[str, Any]]:
    """One table: rows by shape, columns by provider."""
    names = ["sgljit", *(["SGLang"] if peers is not None and op in OF_SGLANG else []), *from_pytorch(device)]
    if op in CONCATENATIONS and device == "cuda" and importlib.util.find_spec("sgl_kernel") is not None:
        names.insert(1, "sgl_kernel")
    if op == BLOCKS and device == "cuda" and importlib.util.find_spec("vllm") is not None:
        names.insert(1, "vLLM")
    latent = op in OF_LATENTS

    def run(tokens: int, size: int, provider: str) -> Figure | float:
        torch.compiler.reset()  # each shape is compiled separately
        others = {"SGLang": lambda: sglang(peers, op, size), "sgl_kernel": lambda: sgl_kernel(op), "vLLM": vllm}
        kernel = others[provider]() if provider in others else provided(op, provider)
        check(op, kernel, make(op, 9, size, device))
        arguments = make(op, tokens, size, device)
        num_bytes = sum(x.numel() * x.itemsize for x in arguments if x.ndim > 1)
        if op == BLOCKS:  # which a few tokens do not fill
            num_bytes = 2 * sum(x.numel() * x.itemsize for x in arguments[:2])
        return measure(kernel, lambda: make(op, tokens, size, device), num_bytes=num_bytes, seconds=0.03)

    most = 4096 if op in CONCATENATIONS else 16384
    size = (UNABSORBED if op == "concat_mla_k" else LATENT) + ROTATED
    shapes = [(tokens, size) for tokens in TOKENS[device] if tokens <= most] if latent else SHAPES[device]
    shapes = [*shapes, *(OTHER_SIZES if op == "store_cache" else [])]
    places = get_benchmark_range(shapes, shapes[1:2])
    return sweep(run, ["tokens", "size"], places, names)


def table_of_windows(device: str) -> list[dict[str, Any]]:
    """The same for ``append_to_window``, with one token for each of so many sequences: a transposed projection."""

    def make(tokens: int, window: int, heads: int, size: int) -> tuple[torch.Tensor, ...]:
        caches = [torch.randn(tokens, heads, window, size, device=device).bfloat16() for _ in "kv"]
        rows = [torch.randn(tokens, 1, heads, size, device=device).bfloat16().transpose(1, 2) for _ in "kv"]
        return (*caches, *rows)

    def run(tokens: int, window: int, heads: int, size: int, provider: str) -> Figure | float:
        torch.compiler.reset()
        kernel = provided("append_to_window", provider)
        check("append_to_window", kernel, make(tokens, window, heads, size))
        num_bytes = 2 * 2 * 2 * tokens * heads * window * size
        return measure(kernel, lambda: make(tokens, window, heads, size), num_bytes=num_bytes, seconds=0.03)

    places = [(tokens, *sizes) for sizes in WINDOWS for tokens in TOKENS_OF_WINDOWS[device]]
    shape = ["tokens", "window", "heads", "size"]
    return sweep(run, shape, get_benchmark_range(places, places[:1]), ["sgljit", *from_pytorch(device)])


def main() -> None:
    """Measure, print the page, and write it."""
    parser = argparse.ArgumentParser(description="Time of stores to KV caches and reads")
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
    tables = {
        op: table_of_windows(arguments.device) if op == "append_to_window" else table(op, arguments.device, peers)
        for op in arguments.ops.split(",")
    }
    note = (
        "bfloat16. Microseconds per call, median; in brackets, the percent of a plain copy that moves as many bytes. "
        "`append_to_window` has one token of each sequence."
    )
    sys.stdout.write(write_results(arguments.output, "KV caches", tables, note=note, device=arguments.device))


if __name__ == "__main__":
    main()
