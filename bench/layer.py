"""How long does all the small work of a decoder layer take: all but its matrix products and its attention?

The ops of the families beside SGLang's kernels as SGLang calls them, torch.compile (a graph for each stretch between
two products) and plain PyTorch: launches, and microseconds of one layer in a CUDA graph, with data that comes from
memory.

    python tests/from_checkout.py bench/layer.py [--device cpu|cuda] [--peers DIR] [--output bench/results/layer.md]

SGLang's kernels come from ``--peers``, a folder with a ``peers.py`` that offers them; of two that choose experts the
faster counts. Before a figure counts, the
results are compared with those of PyTorch in float64. With CI set in the environment: one small shape for each model.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sgljit_core import ops
from sgljit_tools.benchmark import Figure, get_benchmark_range, measure
from sgljit_tools.benchmark.results import sweep, write_plot, write_results

Tensors = dict[str, torch.Tensor]
Step = Callable[[Tensors], object]

TITLE = "The small work of a decoder layer"
EPS = 1e-6
POSITIONS = 4096
TOKENS = {"cuda": (1, 8, 64, 512, 4096), "cpu": (1, 64)}
CHECKED = 64  # tokens, at most, whose results are compared
OF_SGLANG = (
    "SGLang's column: for a sigmoid the faster of `topk_sigmoid` and `kimi_k2_moe_fused_gate`, and for one token "
    "`align_single_token`. For groups of experts SGLang has only a Triton kernel, which is not measured: here it "
    "chooses the experts of DeepSeek V3 as if they were one group. No column joins the parts of q, as SGLang's "
    "`set_mla_kv_concat_q` does."
)
BLOCK = 64  # pairs of a token and an expert that one block of a grouped product takes


@dataclass(frozen=True)
class Model:
    """The sizes of a layer.

    With a ``kv_rank`` its attention is latent: DeepSeek's. With ``experts`` it routes tokens to them, and
    ``intermediate`` is the size of what all tokens share beside them, if there is such.
    """

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
    experts: int = 0
    chosen: int = 0  # of a token
    expert_size: int = 0
    has_sigmoid: bool = False
    groups: int = 1  # of experts
    kept_groups: int = 1  # of a token
    scale: float = 1.0

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
            **(self._of_experts(tokens, device) if self.experts else {}),
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

    def _of_experts(self, tokens: int, device: str) -> Tensors:
        """The gates, float32, and the results of grouped products; and what routing and ordering write."""
        pairs = tokens * self.chosen
        blocks = min(pairs, self.experts + (pairs - self.experts) // BLOCK)
        sizes = {"ids": (tokens, self.chosen), "sorted": (blocks * BLOCK,), "block_experts": (blocks,), "padded": (1,)}
        return {
            "gates": torch.randn(tokens, self.experts, device=device),
            "bias": torch.randn(self.experts, device=device) / 4,
            "weights": torch.zeros(tokens, self.chosen, device=device),
            **{name: torch.zeros(size, dtype=torch.int32, device=device) for name, size in sizes.items()},
            "expert_gate_up": torch.randn(pairs, 2 * self.expert_size, device=device).bfloat16(),
            "expert_activated": torch.zeros(pairs, self.expert_size, device=device).bfloat16(),
            "expert_results": torch.randn(tokens, self.chosen, self.hidden, device=device).bfloat16(),
            "expert_sum": torch.zeros(tokens, self.hidden, device=device).bfloat16(),
        }


DEEPSEEK = Model("DeepSeek V3, a dense layer", 7168, 128, 1, 64, 18432, q_rank=1536, kv_rank=512, nope_dim=128)
MODELS = (
    Model("Qwen3 8B", 4096, 32, 8, 128, 12288, norms_heads=True),
    Model("Llama 3 70B", 8192, 64, 8, 128, 28672),
    DEEPSEEK,
    Model("Qwen3 30B-A3B", 2048, 32, 4, 128, 0, norms_heads=True, experts=128, chosen=8, expert_size=768),
    Model(
        "Kimi K2",
        *(7168, 64, 1, 64, 2048),
        q_rank=1536,
        kv_rank=512,
        nope_dim=128,
        experts=384,
        chosen=8,
        expert_size=2048,
        has_sigmoid=True,
        scale=2.827,
    ),
    replace(
        DEEPSEEK,
        name="DeepSeek V3, experts",
        intermediate=2048,
        experts=256,
        chosen=8,
        expert_size=2048,
        has_sigmoid=True,
        groups=8,
        kept_groups=4,
        scale=2.5,
    ),
)


def sgljit(model: Model) -> list[Step]:
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

    def routing(t: Tensors) -> None:
        chosen = (t["weights"], t["ids"], t["gates"], True)
        if model.has_sigmoid:
            groups = {"num_expert_group": model.groups, "topk_group": model.kept_groups}
            ops["moe"].topk_sigmoid(*chosen, correction_bias=t["bias"], routed_scaling_factor=model.scale, **groups)
        else:
            ops["moe"].topk_softmax(*chosen)

    def order(t: Tensors) -> None:
        written = (t["sorted"], t["block_experts"], t["padded"])
        ops["moe"].moe_align_block_size(t["ids"], model.experts, BLOCK, *written)

    def expert_gate(t: Tensors) -> None:
        activation.silu_and_mul(t["expert_gate_up"], out=t["expert_activated"])

    def expert_sum(t: Tensors) -> None:
        ops["moe"].moe_sum(t["expert_results"], t["expert_sum"])

    between = [latents, rotation] if model.kv_rank else [attention]
    return [first, *between, second, *_mlp(model, gate, [routing, order, expert_gate, expert_sum])]


def _mlp(model: Model, gate: Step, of_experts: list[Step]) -> list[Step]:
    """The steps behind the second norm."""
    return [*([gate] if model.intermediate else []), *(of_experts if model.experts else [])]


def gates_of_sglang(model: Model, peers: Any) -> list[Callable[..., None]]:
    """Its kernels that choose a token's experts."""
    if not model.has_sigmoid:
        return [peers.topk("softmax")]
    return [peers.topk("sigmoid"), *([peers.kimi_k2_gate()] if model.experts in (256, 384) else [])]


def sglang(model: Model, peers: Any, choose: Callable[..., None]) -> list[Step]:
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

    def routing(t: Tensors) -> None:
        choose(t["weights"], t["ids"], t["gates"], t["bias"], model.scale)

    def order(t: Tensors) -> None:
        written = (t["sorted"], t["block_experts"], t["padded"])
        if len(t["ids"]) == 1:
            peers.moe_align_single()(t["ids"], BLOCK, *written)
        else:
            peers.moe_align()(t["ids"], model.experts, BLOCK, *written)

    def expert_sum(t: Tensors) -> None:
        peers.topk_sum()(t["expert_results"], t["expert_sum"])

    of_experts = [routing, order, lambda t: gate(t["expert_gate_up"], t["expert_activated"]), expert_sum]
    between = [q_latent, kv_latent, rotation, store] if model.kv_rank else [attention]
    return [
        first,
        *([heads] if model.norms_heads else []),
        *between,
        second,
        *_mlp(model, lambda t: gate(t["gate_up"], t["activated"]), of_experts),
    ]


def pytorch(model: Model, dtype: torch.dtype = torch.float32) -> list[Step]:
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

    def silu_and_mul(x: torch.Tensor, out: torch.Tensor) -> None:
        gates, values = x.to(dtype).chunk(2, -1)
        out.copy_(torch.nn.functional.silu(gates) * values)

    def routing(t: Tensors) -> None:
        gates = t["gates"].to(dtype)
        scores = gates.sigmoid() if model.has_sigmoid else gates.softmax(-1)
        ranked = scores + t["bias"] if model.has_sigmoid else scores
        if model.groups > 1:
            grouped = ranked.unflatten(-1, (model.groups, -1))
            kept = grouped.topk(2).values.sum(-1).topk(model.kept_groups).indices
            is_kept = torch.zeros(grouped.shape[:-1], dtype=torch.bool, device=kept.device).scatter_(-1, kept, True)
            ranked = grouped.masked_fill(~is_kept[..., None], -torch.inf).flatten(-2)
        ids = ranked.topk(model.chosen).indices
        weights = scores.gather(-1, ids)
        t["ids"].copy_(ids)
        t["weights"].copy_(weights / weights.sum(-1, keepdim=True) * model.scale)

    def order(t: Tensors) -> None:
        ids = t["ids"].flatten().long()
        in_order = ids.argsort(stable=True)
        counts = torch.zeros(model.experts, dtype=torch.long, device=ids.device).scatter_add_(
            0, ids, torch.ones_like(ids)
        )
        ends = ((counts + BLOCK - 1) // BLOCK).cumsum(0)  # of each expert's blocks
        starts = (ends - (counts + BLOCK - 1) // BLOCK) * BLOCK - (counts.cumsum(0) - counts)
        sorted_ids = ids[in_order]
        t["sorted"].fill_(ids.numel())
        t["sorted"][torch.arange(ids.numel(), device=ids.device) + starts[sorted_ids]] = in_order.int()
        blocks = torch.arange(t["block_experts"].numel(), device=ids.device)
        experts = torch.searchsorted(ends, blocks, right=True)
        t["block_experts"].copy_(torch.where(blocks < ends[-1], experts, -1))
        t["padded"].copy_(ends[-1:] * BLOCK)

    def expert_sum(t: Tensors) -> None:
        t["expert_sum"].copy_(t["expert_results"].to(dtype).sum(1))

    of_experts = [routing, order, lambda t: silu_and_mul(t["expert_gate_up"], t["expert_activated"]), expert_sum]
    between = [latents, rotation] if model.kv_rank else [attention]
    return [first, *between, second, *_mlp(model, lambda t: silu_and_mul(t["gate_up"], t["activated"]), of_experts)]


def compiled(model: Model) -> list[Step]:
    """Each stretch between two matrix products, by torch.compile."""
    mode = "max-autotune-no-cudagraphs"
    return [torch.compile(step, dynamic=False, fullgraph=True, mode=mode) for step in pytorch(model)]


# The ways of each to compute a layer: the fastest counts.
PROVIDERS: dict[str, Callable[[Model, Any], list[list[Step]]]] = {
    "sgljit": lambda model, _peers: [sgljit(model)],
    "SGLang": lambda model, peers: [sglang(model, peers, choose) for choose in gates_of_sglang(model, peers)],
    "torch.compile": lambda model, _peers: [compiled(model)],
    "PyTorch": lambda model, _peers: [pytorch(model)],
}
WRITTEN = (
    *("x", "residual", "after_attention", "activated", "q", "q_latent", "k_cache", "v_cache", "kv_cache"),
    *("weights", "ids", "padded", "expert_activated", "expert_sum"),
)


def check(model: Model, steps: list[Step], tokens: int, device: str) -> None:
    """Compare with PyTorch in float64: a figure of another computation would mean nothing."""
    got = model.tensors(tokens, device)
    wanted = {name: tensor.clone() for name, tensor in got.items()}
    for step in steps:
        step(got)
    for step in pytorch(model, torch.float64):
        step(wanted)
    for name in WRITTEN:
        if name in wanted and wanted[name].numel() > 0:
            error = (got[name].double() - wanted[name].double()).norm() / wanted[name].double().norm()
            assert error <= 0.01, f"{model.name}: {name} differs by {error:.3f}"
    if model.experts:
        used = int(wanted["padded"]) // BLOCK
        assert torch.equal(got["block_experts"][:used], wanted["block_experts"][:used]), f"{model.name}: block_experts"


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

    keys = list(model.tensors(1, device))

    def run_steps(steps: list[Step], *tensors: torch.Tensor) -> None:
        t = dict(zip(keys, tensors, strict=True))
        for step in steps:
            step(t)

    def run(tokens: int, provider: str) -> Figure:
        torch.compiler.reset()  # each number of tokens is compiled separately
        served = replace(model, groups=1, kept_groups=1) if provider == "SGLang" else model
        figures: list[tuple[Figure, Callable[..., None]]] = []
        for steps in PROVIDERS[provider](served, peers):
            check(served, steps, min(tokens, CHECKED), device)  # of the largest, rounding may choose another expert
            layer = functools.partial(run_steps, steps)
            figure = measure(layer, lambda: list(model.tensors(tokens, device).values()), seconds=0.05)
            figures.append((figure, layer))
        figure, layer = min(figures, key=lambda found: found[0].microseconds)
        if device == "cuda" and provider not in counted:
            arguments = list(model.tensors(tokens, device).values())
            counted[provider] = launches(lambda: layer(*arguments))
        return figure

    return sweep(run, ["tokens"], [(n,) for n in get_benchmark_range(TOKENS[device], (2,))], names)


def _tokens_of(row: Mapping[str, Any]) -> str:
    return f"{row['tokens']} tokens"


def pictures(tables: dict[str, list[dict[str, Any]]], output: Path) -> dict[str, Path]:
    """A plot beside the page for each of the others that is on all its tables: our time divided by theirs."""
    drawn = {}
    for other in ("torch.compile", "SGLang"):
        if not all(other in row for rows in tables.values() for row in rows):
            continue
        by_tokens: dict[int, dict[str, Any]] = {}
        for model, table_of_model in tables.items():
            for row in table_of_model:
                ratio = row["sgljit"].microseconds / row[other].microseconds
                by_tokens.setdefault(row["tokens"], {"tokens": row["tokens"]})[model] = ratio
        picture = output.with_name(f"{output.stem}_{other.lower().replace('.', '_')}.svg")
        title = f"A layer: our time divided by that of {other}"
        rows = list(by_tokens.values())
        if write_plot(picture, rows, list(tables), place=_tokens_of, quantity="ratio", title=title):
            drawn[title] = Path(picture.name)
    return drawn


def main() -> None:
    """Measure, print the page, and write it after each model: compiling takes minutes, and may be cut short."""
    parser = argparse.ArgumentParser(description="Time of a decoder layer's small work")
    parser.add_argument("--device", choices=list(TOKENS), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--peers", type=Path, help="a folder with peers.py")
    names = [model.name for model in MODELS]
    parser.add_argument("--models", nargs="*", choices=names, default=names, metavar="NAME", help="by default all")
    parser.add_argument("--output", type=Path, help="write the page here")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    peers = None
    if arguments.peers is not None:
        sys.path.insert(0, str(arguments.peers))
        peers = importlib.import_module("peers").Peers(arguments.peers.resolve())
    tables: dict[str, list[dict[str, Any]]] = {}
    page, lines = "", ["bfloat16. Microseconds of one layer's small work, median.", *([OF_SGLANG] if peers else [])]
    for model in (model for model in MODELS if model.name in arguments.models):
        counted: dict[str, int] = {}
        tables[model.name] = table(model, arguments.device, peers, counted)
        if counted:
            told = ", ".join(f"{name} {number}" for name, number in counted.items())
            lines.append(f"Launches of {model.name}: {told}.")
        plots = pictures(tables, arguments.output) if arguments.output is not None else {}
        note = "\n".join(lines)
        page = write_results(arguments.output, TITLE, tables, note=note, plots=plots, device=arguments.device)
    sys.stdout.write(page)


if __name__ == "__main__":
    main()
