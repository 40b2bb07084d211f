"""How long does all the small work of a decoder layer take: all but its matrix products and its attention?

The ops of the families beside SGLang's kernels as SGLang calls them, torch.compile (a graph for each stretch between
two products) and plain PyTorch: launches, and microseconds of one layer in a CUDA graph, with data that comes from
memory.

    python tests/from_checkout.py bench/layer.py [--device cpu|cuda] [--peers DIR] [--output bench/results/layer.md]

SGLang's kernels come from ``--peers``, a folder with a ``peers.py`` that offers them. Before a figure counts, the
results are compared with those of PyTorch in float64. With CI set in the environment: one small shape for each model.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sgljit_core import ops
from sgljit_tools.benchmark import Figure, get_benchmark_range, measure
from sgljit_tools.benchmark.results import sweep, write_results

Tensors = dict[str, torch.Tensor]
Step = Callable[[Tensors], object]

EPS = 1e-6
POSITIONS = 4096
TOKENS = {"cuda": (1, 8, 64, 512, 4096), "cpu": (1, 64)}


@dataclass(frozen=True)
class Model:
    """The sizes of a layer. With a ``kv_rank`` its attention is latent: DeepSeek's."""

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    norms_heads: bool = False
    q_rank: int = 0
    kv_rank: int = 0
    nope_dim: int = 0

    def tensors(self, tokens: int, device: str) -> Tensors:
        """The results of matrix products and attention, the weights, and a cache; bfloat16."""

        def randn(*shape: int) -> torch.Tensor:
            return torch.randn(shape, device=device).bfloat16()

        angles = torch.rand(POSITIONS, self.head_dim // 2, device=device) * 7
        found = {
            "x": randn(tokens, self.hidden),
            "residual": randn(tokens, self.hidden),
            "norm_weight": randn(self.hidden),
            "after_attention": randn(tokens, self.hidden),
            "second_weight": randn(self.hidden),
            "gate_up": randn(tokens, 2 * self.intermediate),
            "activated": randn(tokens, self.intermediate),
            "cos_sin": torch.cat([angles.cos(), angles.sin()], 1),
            "positions": torch.randint(0, POSITIONS, (tokens,), device=device),
            "slots": torch.randperm(tokens, device=device),
        }
        if self.kv_rank:
            projected = randn(tokens, self.q_rank + self.kv_rank + self.head_dim)
            q_latent, kv_latent = projected.split([self.q_rank, self.kv_rank + self.head_dim], 1)
            return found | {
                "q_latent": q_latent,
                "kv_latent": kv_latent,
                "q_weight": randn(self.q_rank),
                "kv_weight": randn(self.kv_rank),
                "q": randn(tokens, self.heads, self.nope_dim + self.head_dim),
                "kv_cache": randn(tokens, self.kv_rank + self.head_dim),
            }
        q, k, v = randn(tokens, (self.heads + 2 * self.kv_heads) * self.head_dim).split(
            [n * self.head_dim for n in (self.heads, self.kv_heads, self.kv_heads)], 1
        )
        return found | {
            "q": q.unflatten(1, (self.heads, -1)),
            "k": k.unflatten(1, (self.kv_heads, -1)),
            "v": v.unflatten(1, (self.kv_heads, -1)),
            "q_weight": randn(self.head_dim),
            "k_weight": randn(self.head_dim),
            "k_cache": randn(tokens, self.kv_heads, self.head_dim),
            "v_cache": randn(tokens, self.kv_heads, self.head_dim),
        }


MODELS = (
    Model("Qwen3 8B", 4096, 32, 8, 128, 12288, norms_heads=True),
    Model("Llama 3 70B", 8192, 64, 8, 128, 28672),
    Model("DeepSeek V3, a dense layer", 7168, 128, 1, 64, 18432, q_rank=1536, kv_rank=512, nope_dim=128),
)


def sgljit(model: Model, _peers: Any) -> list[Step]:
    """The ops of the families, and for DeepSeek the prologue of the example."""
    norm, rope, activation = ops["norm"], ops["rope"], ops["activation"]

    def first(t: Tensors) -> None:
        norm.fused_add_rmsnorm(t["x"], t["residual"], t["norm_weight"], EPS)

    def attention(t: Tensors) -> None:
        where = (t["cos_sin"], t["positions"], t["slots"])
        caches = (t["k_cache"], t["v_cache"])
        if model.norms_heads:
            weights = (t["q_weight"], t["k_weight"])
            rope.fused_qk_norm_rope_with_kvcache(t["q"], t["k"], t["v"], *weights, *caches, *where, eps=EPS)
        else:
            rope.apply_rope_inplace_with_kvcache(t["q"], t["k"], t["v"], *caches, *where)

    def latents(t: Tensors) -> None:
        weights = (t["q_weight"], t["kv_weight"])
        where = (t["cos_sin"], t["positions"], t["kv_cache"], t["slots"])
        ops["prologues"].deepseek_v3(t["q_latent"], t["kv_latent"], *weights, *where, EPS)

    def rotation(t: Tensors) -> None:
        q = t["q"][..., model.nope_dim :]
        rope.apply_rope_inplace(q, q[:, :0], t["cos_sin"], t["positions"], is_neox=False)

    def second(t: Tensors) -> None:
        norm.fused_add_rmsnorm(t["after_attention"], t["residual"], t["second_weight"], EPS)

    def gate(t: Tensors) -> None:
        activation.silu_and_mul(t["gate_up"], out=t["activated"])

    return [first, *([latents, rotation] if model.kv_rank else [attention]), second, gate]


def sglang(model: Model, peers: Any) -> list[Step]:
    """SGLang's kernels, as its layers call them."""
    add_norm, gate = peers.fused_add_rmsnorm(), peers.silu_and_mul()
    rope = peers.rope(model.head_dim, not model.kv_rank)

    def first(t: Tensors) -> None:
        add_norm(t["x"], t["residual"], t["norm_weight"], EPS)

    def heads(t: Tensors) -> None:
        peers.qknorm(model.head_dim)(t["q"], t["k"], t["q_weight"], t["k_weight"], EPS)

    def attention(t: Tensors) -> None:
        caches = (t["k_cache"].flatten(1), t["v_cache"].flatten(1))
        rope.fused(t["q"], t["k"], t["v"], *caches, t["cos_sin"], t["positions"], t["slots"])

    def q_latent(t: Tensors) -> None:
        peers.rmsnorm(model.q_rank)(t["q_latent"], t["q_weight"], t["q_latent"], EPS)

    def kv_latent(t: Tensors) -> None:
        latent = t["kv_latent"][:, : model.kv_rank]
        peers.rmsnorm(model.kv_rank)(latent, t["kv_weight"], latent, EPS)

    def rotation(t: Tensors) -> None:
        k = t["kv_latent"][:, None, model.kv_rank :]
        rope.run(t["q"][..., model.nope_dim :], k, t["cos_sin"], t["positions"])

    def store(t: Tensors) -> None:
        latent, positional = t["kv_latent"].split([model.kv_rank, model.head_dim], 1)
        peers.set_mla_kv_buffer(2 * model.kv_rank, 2 * model.head_dim)(t["kv_cache"], t["slots"], latent, positional)

    def second(t: Tensors) -> None:
        add_norm(t["after_attention"], t["residual"], t["second_weight"], EPS)

    between = [q_latent, kv_latent, rotation, store] if model.kv_rank else [attention]
    return [
        first,
        *([heads] if model.norms_heads else []),
        *between,
        second,
        lambda t: gate(t["gate_up"], t["activated"]),
    ]


def pytorch(model: Model, _peers: Any, dtype: torch.dtype = torch.float32) -> list[Step]:
    """Plain PyTorch, rounded where the ops round: at their ends."""

    def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x = x.to(dtype)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight.to(dtype)

    def rotated(x: torch.Tensor, t: Tensors) -> torch.Tensor:
        cos, sin = (part.to(dtype) for part in t["cos_sin"][t["positions"]][:, None].chunk(2, -1))
        pair = (-1, 2) if model.kv_rank else (2, -1)
        side = -1 if model.kv_rank else -2
        a, b = x.to(dtype).unflatten(-1, pair).unbind(side)
        return torch.stack([a * cos - b * sin, b * cos + a * sin], side).flatten(-2)

    def add_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> None:
        total = x.to(dtype) + residual.to(dtype)
        residual.copy_(total)
        x.copy_(normed(total, weight))

    def first(t: Tensors) -> None:
        add_norm(t["x"], t["residual"], t["norm_weight"])

    def attention(t: Tensors) -> None:
        q, k = t["q"], t["k"]
        if model.norms_heads:
            q, k = normed(q, t["q_weight"]), normed(k, t["k_weight"])
        q, k = rotated(q, t), rotated(k, t)
        t["q"].copy_(q)
        t["k_cache"][t["slots"]] = k.to(t["k_cache"].dtype)
        t["v_cache"][t["slots"]] = t["v"]

    def latents(t: Tensors) -> None:
        latent, positional = t["kv_latent"].split([model.kv_rank, model.head_dim], 1)
        stored = torch.cat([normed(latent, t["kv_weight"]), rotated(positional[:, None], t)[:, 0]], 1)
        t["kv_cache"][t["slots"]] = stored.to(t["kv_cache"].dtype)
        t["q_latent"].copy_(normed(t["q_latent"], t["q_weight"]))

    def rotation(t: Tensors) -> None:
        q = t["q"][..., model.nope_dim :]
        q.copy_(rotated(q, t))

    def second(t: Tensors) -> None:
        add_norm(t["after_attention"], t["residual"], t["second_weight"])

    def gate(t: Tensors) -> None:
        gates, values = t["gate_up"].to(dtype).chunk(2, -1)
        t["activated"].copy_(torch.nn.functional.silu(gates) * values)

    return [first, *([latents, rotation] if model.kv_rank else [attention]), second, gate]


def compiled(model: Model, peers: Any) -> list[Step]:
    """Each stretch between two matrix products, by torch.compile."""
    mode = "max-autotune-no-cudagraphs"
    return [torch.compile(step, dynamic=False, fullgraph=True, mode=mode) for step in pytorch(model, peers)]


PROVIDERS: dict[str, Callable[[Model, Any], list[Step]]] = {
    "sgljit": sgljit,
    "SGLang": sglang,
    "torch.compile": compiled,
    "PyTorch": pytorch,
}
WRITTEN = ("x", "residual", "after_attention", "activated", "q", "q_latent", "k_cache", "v_cache", "kv_cache")


def check(model: Model, steps: list[Step], device: str) -> None:
    """Compare with PyTorch in float64: a figure of another computation would mean nothing."""
    got = model.tensors(9, device)
    wanted = {name: tensor.clone() for name, tensor in got.items()}
    for step in steps:
        step(got)
    for step in pytorch(model, None, torch.float64):
        step(wanted)
    for name in WRITTEN:
        if name in wanted:
            error = (got[name].double() - wanted[name].double()).norm() / wanted[name].double().norm()
            assert error <= 0.01, f"{model.name}: {name} differs by {error:.3f}"


def launches(run: Callable[[], object]) -> int:
    """The kernels that a call launches on CUDA."""
    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profile.events())


def table(model: Model, device: str, peers: Any, counted: dict[str, int]) -> list[dict[str, Any]]:
    """One table: a row for each number of tokens, a column for each provider."""
    names = [name for name in PROVIDERS if name != "SGLang" or peers is not None]
    names = [name for name in names if name != "torch.compile" or device == "cuda"]  # on the CPU it would time g++

    def run(tokens: int, provider: str) -> Figure:
        torch.compiler.reset()  # each number of tokens is compiled separately
        steps = PROVIDERS[provider](model, peers)
        check(model, steps, device)

        def layer(*tensors: torch.Tensor) -> None:
            t = dict(zip(keys, tensors, strict=True))
            for step in steps:
                step(t)

        keys = list(model.tensors(1, device))
        if device == "cuda" and provider not in counted:
            arguments = list(model.tensors(tokens, device).values())
            counted[provider] = launches(lambda: layer(*arguments))
        return measure(layer, lambda: list(model.tensors(tokens, device).values()), seconds=0.05)

    return sweep(run, ["tokens"], [(n,) for n in get_benchmark_range(TOKENS[device], (2,))], names)


def main() -> None:
    """Measure, print the page, and write it with a plot beside it."""
    parser = argparse.ArgumentParser(description="Time of a decoder layer's small work")
    parser.add_argument("--device", choices=list(TOKENS), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--peers", type=Path, help="a folder with peers.py")
    parser.add_argument("--output", type=Path, help="write the page here")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    peers = None
    if arguments.peers is not None:
        sys.path.insert(0, str(arguments.peers))
        peers = importlib.import_module("peers").Peers(arguments.peers.resolve())
    tables: dict[str, list[dict[str, Any]]] = {}
    lines = ["bfloat16. Microseconds of one layer's small work, median."]
    for model in MODELS:
        counted: dict[str, int] = {}
        tables[model.name] = table(model, arguments.device, peers, counted)
        if counted:
            told = ", ".join(f"{name} {number}" for name, number in counted.items())
            lines.append(f"Launches of {model.name}: {told}.")
    note = "\n".join(lines)
    page = write_results(
        arguments.output, "The small work of a decoder layer", tables, note=note, device=arguments.device
    )
    sys.stdout.write(page)


if __name__ == "__main__":
    main()
