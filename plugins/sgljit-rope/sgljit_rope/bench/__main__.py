"""How fast are the ops of the family against SGLang's kernels, torch.compile and PyTorch?

    python -m sgljit_rope.bench [--device cpu|cuda] [--ops OPS] [--sizes 64,128] [--peers DIR] [--output FILE]

In bfloat16, 32 heads of queries and 8 of keys, slices of one projection. SGLang's kernels are measured from
``--peers``, a folder with a ``peers.py`` that offers them. The bytes of a call are those of the heads that are read and
written. Latent attention has 128 heads of queries, of which 64 elements are rotated, and rows of 512 and 64. The last
tables compare each fused op with our own ops for its parts. With CI set in the environment: one small shape of each op.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import math
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.functional import rms_norm

from sgljit_core import ops
from sgljit_rope import reference
from sgljit_tools.benchmark import Figure, get_benchmark_range, measure
from sgljit_tools.benchmark.results import sweep, write_results

Run = Callable[..., object]
Arguments = tuple[Any, ...]

HEADS, KV_HEADS, EPS, THETA = 32, 8, 1e-6, 10000.0
PROJECTION = (HEADS, KV_HEADS, KV_HEADS)  # the heads of q, k and v in a row
MLA = "apply_rope_inplace_with_mla_kvcache"
LATENT_HEADS, LATENT, ROTATED = 128, 512, 64
POSITIONS = 4096
SECONDS = 0.03
NORM_SIZES = (64, 128, 256)  # that SGLang's norms of heads take
SHAPES = {
    "cuda": [
        *((tokens, size) for size in (64, 128, 256) for tokens in (1, 8, 64, 256, 1024, 4096, 16384)),
        *((tokens, size) for size in (80, 96, 192) for tokens in (1, 64, 1024)),
    ],
    "cpu": [(1, 128), (64, 128), (1024, 128)],
}
OPS = (
    "apply_rope_inplace",
    "apply_rotary_pos_emb_inplace",
    "apply_rotary_pos_emb",
    "apply_rope_inplace_with_kvcache",
    "fused_qk_norm_rope",
    "fused_qk_norm_rope_with_kvcache",
    MLA,
)
OPTIONS = {MLA: {"is_neox": False}}  # of ops, as models call them
# By fused op, the work that it does: in words, and as single ops.
FUSED = {
    "apply_rope_inplace_with_kvcache": ("rope + store", ("apply_rope_inplace", "store_cache")),
    "fused_qk_norm_rope": ("norms + rope", ("fused_inplace_qknorm", "apply_rope_inplace")),
    "fused_qk_norm_rope_with_kvcache": (
        "norms + rope + store",
        ("fused_inplace_qknorm", "apply_rope_inplace", "store_cache"),
    ),
    MLA: ("rope + store of latent rows", ("apply_rope_inplace of latent attention", "set_mla_kv_buffer")),
}


class Single(NamedTuple):
    """An op that does a part of the work of a fused one.

    Attributes:
        like: the fused op, with whose arguments it is measured.
        places: of those that it takes, in its order.
    """

    family: str
    op: str
    like: str
    places: tuple[int, ...]


SINGLE = {
    "fused_inplace_qknorm": Single("norm", "fused_inplace_qknorm", "fused_qk_norm_rope", (0, 1, 2, 3)),
    "store_cache": Single("kvcache", "store_cache", "apply_rope_inplace_with_kvcache", (1, 2, 3, 4, 7)),
    "apply_rope_inplace of latent attention": Single("rope", "apply_rope_inplace", MLA, (0, 2, 4, 5)),
    "set_mla_kv_buffer": Single("kvcache", "set_mla_kv_buffer", MLA, (3, 6, 1, 2)),
}
NOTE = """bfloat16. Microseconds per call, median; in brackets, the percent of a plain copy that moves as many bytes.

"SGLang": its kernels one after the other where none does all: those of the norms, of the rotation, and of the rotation
with the store. "SGLang, fused": what it has beside these for a whole projection. For `fused_qk_norm_rope` its kernel of
norms and rotation, which computes its angles and reads no table; with the store, that kernel and then the store. For
`apply_rope_inplace_with_kvcache` its `bf16_rope_scale_store`, which rotates by a table of bfloat16, rounds each product
and sum, writes q to memory of its own, and leaves k in the projection as it was. The last column takes the best of all.
`apply_rope_inplace_with_mla_kvcache` pairs 2i with 2i + 1, as DeepSeek's models do.
"""


def make(op: str, tokens: int, size: int, device: str) -> Arguments:
    """The arguments of a call, in the op's order: heads are slices of a projection, and slot 0 stays empty.

    SGLang keeps no token in that slot. The table is that of ``THETA``, from which a kernel of it computes its angles.
    """
    q, k, v = torch.randn(tokens, sum(PROJECTION), size, device=device).bfloat16().split(PROJECTION, dim=1)
    slots = torch.randperm(tokens, device=device) + 1
    caches = [torch.zeros(tokens + 1, KV_HEADS, size, device=device).bfloat16() for _ in "kv"]
    weights = [torch.rand(size, device=device).bfloat16() for _ in "qk"]
    turns = THETA ** (-torch.arange(0, size, 2, device=device, dtype=torch.float64) / size)
    angles = torch.arange(POSITIONS, device=device)[:, None] * turns
    cos_sin = torch.cat((angles.cos(), angles.sin()), -1).float()
    positions = torch.randint(0, POSITIONS, (tokens,), device=device)
    if op == MLA:
        q = torch.randn(tokens, LATENT_HEADS, 128 + size, device=device).bfloat16()[..., 128:]
        parts = torch.randn(tokens, 1, LATENT + size, device=device).bfloat16().split((LATENT, size), dim=-1)
        kv_buffer = torch.zeros(tokens + 1, 1, LATENT + size, device=device).bfloat16()
        return q, *parts, kv_buffer, cos_sin, positions, slots
    if op.startswith("apply_rotary_pos_emb"):
        cos, sin = (x.repeat(1, 2).bfloat16() for x in cos_sin[positions].chunk(2, dim=-1))
        if op.endswith("inplace"):
            return q, k, cos, sin
        q, k = (x[None].transpose(1, 2) for x in (q, k))
        return q, k, cos[None], sin[None], torch.zeros_like(q), torch.zeros_like(k)
    stored = op.endswith("kvcache")
    arguments = [q, k, *([v] if stored else []), *(weights if "norm" in op else []), *(caches if stored else [])]
    return (*arguments, cos_sin, positions, *([slots] if stored else []))


def pytorch(op: str, *arguments: torch.Tensor) -> None:
    """The op in plain PyTorch: float32, and every token is stored; for ``apply_rotary_pos_emb`` as in transformers."""
    if op in ("apply_rotary_pos_emb", MLA):
        (transformers if op == "apply_rotary_pos_emb" else latent)(*arguments)
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


def latent(
    q_rope: torch.Tensor,
    k_nope: torch.Tensor,
    k_rope: torch.Tensor,
    kv_buffer: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """The rotation of neighbours, and the store."""
    cos, sin = cos_sin[positions][:, None].chunk(2, dim=-1)
    for x in (q_rope, k_rope):
        a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        x.copy_(torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2))
    kv_buffer[slots] = torch.cat((k_nope, k_rope), -1)


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
        out.copy_(x * cos + torch.cat((-b, a), dim=-1) * sin)  # torch.compile takes no `out=` with gaps


class Kernel(NamedTuple):
    """A provider's code for an op.

    Attributes:
        run: takes its own arguments.
        of: makes these from the arguments of our op.
        found: the tensors that it has written, by their places among the arguments of our op.
    """

    run: Run
    of: Callable[[Arguments], Arguments] = lambda arguments: arguments
    found: Callable[[Arguments], Mapping[int, torch.Tensor]] = lambda arguments: dict(enumerate(arguments))


def sglang(peers: Any, op: str, size: int) -> Kernel | None:
    """SGLang's kernels for an op, one after the other, neox but for latents; None for a size that they do not take."""
    if "norm" in op and size not in NORM_SIZES:
        return None
    rope = peers.rope(size, op != MLA)
    if op == MLA:
        store = peers.set_mla_kv_buffer(2 * LATENT, 2 * size)

        def rotate_and_store(q: Any, k_nope: Any, k_rope: Any, kv_buffer: Any, cos_sin: Any, *where: Any) -> None:
            positions, slots = where
            rope.run(q, k_rope, cos_sin, positions)
            store(kv_buffer.flatten(1), slots, k_nope.flatten(1), k_rope.flatten(1))

        return Kernel(rotate_and_store)

    def fused(q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any, *others: Any) -> None:
        rope.fused(q, k, v, k_cache.flatten(1), v_cache.flatten(1), *others)

    after: Run = fused if op.endswith("kvcache") else rope.run
    if "norm" not in op:
        return Kernel(after)
    norm = peers.qknorm(size)
    first = 3 if op.endswith("kvcache") else 2  # the weights' place

    def chain(*arguments: torch.Tensor) -> None:
        norm(*arguments[:2], *arguments[first : first + 2], EPS)
        after(*arguments[:first], *arguments[first + 2 :])

    return Kernel(chain)


def sglang_fused(peers: Any, op: str, size: int) -> Kernel | None:
    """SGLang's kernels that take a projection, neox: with the norms it is stored by another; None as for ``sglang``."""
    if "norm" in op and size not in NORM_SIZES:
        return None
    ends = (HEADS * size, (HEADS + KV_HEADS) * size)  # of q and of k in a row

    def projection(q: torch.Tensor) -> torch.Tensor:
        return q.as_strided((len(q), sum(PROJECTION) * size), (q.stride(0), 1))

    if "norm" not in op:

        def of(arguments: Arguments) -> Arguments:
            q, _, _, k_cache, v_cache, cos_sin, *where = arguments
            out = torch.zeros(len(q), HEADS * size, dtype=q.dtype, device=q.device)
            return (projection(q), out, k_cache, v_cache, cos_sin.bfloat16(), *where)

        return Kernel(peers.rope_scale_store(), of, lambda own: {0: own[1], 3: own[2], 4: own[3]})

    kernel, store = peers.qknorm_rope(size, True), peers.store(2 * KV_HEADS * size)
    is_stored = op.endswith("kvcache")

    def of_norm(arguments: Arguments) -> Arguments:
        q, _, *others = arguments
        q_weight, k_weight, *caches, _, positions, slots = others[1:] if is_stored else (*others, None)
        stored = (*(x.flatten(1) for x in caches), slots) if is_stored else ()
        return (projection(q), q_weight, k_weight, positions.int(), *stored)

    def run(qkv: torch.Tensor, q_weight: Any, k_weight: Any, positions: Any, *stored: Any) -> None:
        kernel(qkv, q_weight, k_weight, positions, PROJECTION, EPS, THETA)
        if is_stored:
            k_cache, v_cache, slots = stored
            store(qkv[:, ends[0] : ends[1]], qkv[:, ends[1] :], k_cache, v_cache, slots, len(k_cache), -1)

    def found(own: Arguments) -> Mapping[int, torch.Tensor]:
        caches = {5: own[4], 6: own[5]} if is_stored else {}
        return {0: own[0][:, : ends[0]], 1: own[0][:, ends[0] : ends[1]], **caches}

    return Kernel(run, of_norm, found)


def check(op: str, kernel: Kernel, size: int, device: str) -> None:
    """Check that a kernel computes the op: a figure of another computation would mean nothing."""
    arguments = make(op, 9, size, device)
    wanted = [x.clone() for x in arguments]
    getattr(reference, op)(*wanted, **OPTIONS.get(op, {}))
    own = kernel.of(arguments)
    kernel.run(*own)
    for place, got in kernel.found(own).items():
        want = wanted[place].double().flatten()
        assert (got.double().flatten() - want).norm() <= 0.02 * want.norm(), (op, size, place)


def num_bytes(op: str, tokens: int, size: int) -> int:
    """The bytes of the heads and latent rows that an op reads and writes."""
    if op == MLA:
        return 2 * tokens * (2 * LATENT_HEADS * size + 3 * size + 2 * LATENT)
    return 2 * tokens * size * (2 * (HEADS + KV_HEADS) + (3 * KV_HEADS if op.endswith("kvcache") else 0))


@functools.cache
def ours(op: str, tokens: int, size: int, device: str) -> Figure:
    """The time of an op of this family, or of one of those that it stands for."""
    if op in SINGLE:
        single = SINGLE[op]
        options = OPTIONS.get(single.like, {}) if single.family == "rope" else {}
        run = functools.partial(getattr(ops[single.family], single.op), **options)
        picked = operator.itemgetter(*single.places)
        return measure(run, lambda: picked(make(single.like, tokens, size, device)), seconds=SECONDS)
    kernel = Kernel(functools.partial(getattr(ops["rope"], op), **OPTIONS.get(op, {})))
    check(op, kernel, size, device)
    return measure(
        kernel.run, lambda: make(op, tokens, size, device), num_bytes=num_bytes(op, tokens, size), seconds=SECONDS
    )


def table(op: str, device: str, peers: Any, places: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """One table: rows by shape, columns by provider."""
    has_peer = peers is not None and not op.startswith("apply_rotary_pos_emb")
    names = [
        "sgljit",
        *(["SGLang"] if has_peer else []),
        *(["SGLang, fused"] if has_peer and op in FUSED and op != MLA else []),
    ]
    names += ["PyTorch", *(["torch.compile"] if device == "cuda" else [])]  # which on the CPU times a C++ compiler
    plain = functools.partial(pytorch, op)

    def run(tokens: int, size: int, provider: str) -> Figure | float:
        torch.compiler.reset()  # each shape is compiled separately
        if provider == "sgljit":
            return ours(op, tokens, size, device)
        if provider.startswith("SGLang"):
            kernel = (sglang if provider == "SGLang" else sglang_fused)(peers, op, size)
        else:
            kernel = Kernel(plain if provider == "PyTorch" else torch.compile(plain, dynamic=False))
        if kernel is None:
            return math.nan
        check(op, kernel, size, device)
        of, moved = kernel.of, num_bytes(op, tokens, size)
        return measure(kernel.run, lambda: of(make(op, tokens, size, device)), num_bytes=moved, seconds=SECONDS)

    return sweep(run, ["tokens", "size"], places, names)


def places_of(op: str, places: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """Where an op is measured: heads of latent attention have one size."""
    return list(dict.fromkeys((tokens, ROTATED) for tokens, _ in places)) if op == MLA else places


def parts(fused: Sequence[str], device: str, places: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """The time of each fused op, divided by that of the ops it stands for, one after the other."""

    def ratio(op: str, tokens: int, size: int) -> float:
        of = (ours(one, tokens, size, device).microseconds for one in FUSED[op][1])
        return ours(op, tokens, size, device).microseconds / sum(of)

    return [
        {"tokens": tokens, "size": size, **{FUSED[op][0]: ratio(op, tokens, size) for op in fused}}
        for tokens, size in places
    ]


def main() -> None:
    """Measure, print the page, and write it."""
    parser = argparse.ArgumentParser(description="Time of rotary position embedding")
    parser.add_argument("--device", choices=list(SHAPES), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--ops", default=",".join(OPS), help="which, with commas between")
    parser.add_argument("--sizes", help="of heads, with commas between; default: all")
    parser.add_argument("--peers", type=Path, help="a folder with peers.py")
    parser.add_argument("--output", type=Path, help="write the page here")
    arguments = parser.parse_args()
    device, names = arguments.device, arguments.ops.split(",")
    sizes = {str(size) for _, size in SHAPES[device]}
    chosen = set(arguments.sizes.split(",")) if arguments.sizes else sizes
    for option, unknown, known in (
        ("ops", set(names) - {*OPS}, OPS),
        ("sizes", chosen - sizes, sorted(sizes, key=int)),
    ):
        if unknown:
            parser.error(f"--{option}: expected some of {', '.join(known)}, got {', '.join(sorted(unknown))}")
    shapes = [place for place in SHAPES[device] if str(place[1]) in chosen]
    places = get_benchmark_range(shapes, shapes[1:2])
    torch.manual_seed(0)
    peers = None
    if arguments.peers is not None:
        sys.path.insert(0, str(arguments.peers))
        peers = importlib.import_module("peers").Peers(arguments.peers.resolve())
    tables = {op: table(op, device, peers, places_of(op, places)) for op in names}
    if fused := [op for op in FUSED if op in names and op != MLA]:
        tables["fused / sum of its parts"] = parts(fused, device, places)
    if MLA in names:
        tables["fused / sum of its parts, latent attention"] = parts([MLA], device, places_of(MLA, places))
    sys.stdout.write(write_results(arguments.output, "Rotary position embedding", tables, note=NOTE, device=device))


if __name__ == "__main__":
    main()
