"""How long does a compiled step take with the chains on ops of ours, and how many kernels does it launch?

A step is one token for each of some users, behind a static cache, as ``generate`` runs it; and a prompt. Models have
random weights. Each row is the whole model, by the clock until the device has finished. inductor alone and the backend
are compiled from the same model and measured by turns. Besides all chains, each kind is measured alone.

A layer with a sliding window counts its tokens in a Python number, for which CUDA graphs are recorded anew with each
token, whoever compiles. The number stays the same here.

``python -m sgljit_compile.bench.compiled --output bench/results/compiled.md``
"""

from __future__ import annotations

import argparse
import itertools
import re
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

import sgljit_compile
from sgljit_norm.bench.heat_map import write_heat_map
from sgljit_tools.benchmark.results import write_results

_COMMON = {"vocab_size": 32000, "max_position_embeddings": 8192, "head_dim": 128, "num_key_value_heads": 8}
SIZES: dict[str, dict[str, Any]] = {
    "2048": {"num_hidden_layers": 8, "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 16},
    "4096": {"num_hidden_layers": 8, "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32},
}
TINY = {
    "64": {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 128,
    }
}

# Sizes of a type of models beside these.
SPECIAL: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 768},
    "gpt_oss": {"num_local_experts": 8, "num_experts_per_tok": 4, "intermediate_size": 2048, "head_dim": 64},
}

ALONE, ALL, LIMIT = "inductor", "all chains", "saved / small kernels"
LINES = {ALONE: "off", ALL: "on", "add + norm": "norm", "heads": "rope", "routing": "moe"}

# Matrix products, with the sums of their parts, and attention. inductor's own kernels are small: they are named after
# all that they fuse, such as the mask of attention.
LARGE = re.compile(
    "(?!triton_).*(gemm|gemv|matvec|sum_columns|cublas|cutlass|nvjet|splitk|flash|fmha|attention|cudnn|xmma)",
    re.IGNORECASE,
)

NOTE = """
{layers} layers with random weights, {dtype}. Milliseconds of a step, the median of {rounds} rounds of {repeats} steps
by the clock; in brackets inductor's time divided by this one's, and on a GPU the kernels of a step with the sum of
their times; then those of small kernels, which are all but matrix products and attention. Decode is a token of each of
some users behind {prompt} tokens in a static cache; prefill is a forward of their prompts of {prompt} tokens.
Routed experts are computed by `grouped_mm` or `batched_mm` of transformers: `generate` takes the second for a token
on a GPU. "inductor" is `torch.compile(model, mode=...)`. The other columns are `backend="sgljit"`: "all chains", with
additions and norms alone ("add + norm"), with the chains of heads alone ("heads"), or with those of experts alone
("routing"). "saved / small kernels" is what all chains save, divided by the time of inductor's small kernels: above 1
attention takes less time, too.
"""


def make(name: str, size: dict[str, Any], options: argparse.Namespace) -> Any:
    """A model with random weights."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **{**_COMMON, **size, **SPECIAL.get(name, {})}, use_cache=True)
    auto: Any = transformers.AutoModelForCausalLM  # untyped
    with torch.device(options.device):
        return auto.from_config(config, dtype=options.dtype).eval()


def choose_experts(model: Any, phase: str, options: argparse.Namespace) -> str:
    """Set how the products of routed experts are computed, and say it; nothing for a model without.

    ``generate`` takes ``grouped_mm`` for a prompt, and on a GPU ``batched_mm`` for each token.
    """
    if "eager" in model.get_experts_implementation().values():
        return ""
    usual = "batched_mm" if phase == "decode" and options.device == "cuda" else "grouped_mm"
    model.set_experts_implementation(options.experts or usual)
    return f", {options.experts or usual}"


def compiled(model: Any, line: str, mode: str) -> Any:
    """The model's forward as inductor or the backend compiles it."""
    if line == ALONE:
        return torch.compile(model, mode=mode)
    return torch.compile(model, backend="sgljit", options={"chains": LINES[line], "mode": mode})


def finish(options: argparse.Namespace) -> None:
    """Wait for the device."""
    if options.device == "cuda":
        torch.cuda.synchronize()


def decode(call: Any, model: Any, options: argparse.Namespace) -> Callable[[], None]:
    """A step of decode. The cache begins anew after some steps, so that all are alike."""
    ids = torch.randint(3, model.config.vocab_size, (options.batch, options.prompt), device=options.device)
    cache = transformers.StaticCache(config=model.config, max_cache_len=options.prompt + (options.repeats + 7) // 8 * 8)
    model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    token = torch.full((options.batch, 1), 5, device=options.device)
    position = torch.full((1, 1), options.prompt, device=options.device)
    layers: Any = cache.layers  # untyped
    steps = itertools.count()

    def step() -> None:
        if next(steps) % options.repeats == 0:
            for layer in layers:
                layer.cumulative_length.fill_(options.prompt)
        for layer in layers:
            if hasattr(layer, "cumulative_length_int"):
                layer.cumulative_length_int = options.prompt
        call(token, past_key_values=cache, position_ids=position, use_cache=True)

    return step


def prefill(call: Any, model: Any, options: argparse.Namespace) -> Callable[[], None]:
    """A forward of whole prompts."""
    ids = torch.randint(3, model.config.vocab_size, (options.batch, options.prompt), device=options.device)
    return lambda: call(ids, use_cache=False, logits_to_keep=1)


STEPS: dict[str, Callable[..., Callable[[], None]]] = {"decode": decode, "prefill": prefill}


def milliseconds(step: Callable[[], None], options: argparse.Namespace) -> float:
    """The mean time of several steps."""
    finish(options)
    start = time.perf_counter()
    for _ in range(options.repeats):
        step()
    finish(options)
    return (time.perf_counter() - start) * 1e3 / int(options.repeats)


class Kernels(NamedTuple):
    """The kernels of a step on a GPU: how many, and the sum of their microseconds; of all, and of small ones."""

    number: float
    time: float
    small: float
    small_time: float

    def __str__(self) -> str:
        return f"; kernels {self.number:.0f}, {self.time:.0f} us; small {self.small:.0f}, {self.small_time:.0f} us"


def kernels(step: Callable[[], None], options: argparse.Namespace) -> Kernels | None:
    """The kernels of a step; None without a GPU."""
    if options.device != "cuda":
        return None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            step()
        finish(options)
    events = [event for event in profile.key_averages() if event.device_type.name == "CUDA"]
    small = [event for event in events if not LARGE.match(event.key)]
    sums = [(sum(e.count for e in some), sum(e.device_time_total for e in some)) for some in (events, small)]
    return Kernels(*(x / 5 for pair in sums for x in pair))


def rows(options: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """The rows of the page, after each model and mode: compiling takes minutes, and may be cut short."""
    done: list[dict[str, Any]] = []
    for name in options.models:
        for size, config in (TINY if options.tiny else SIZES).items():
            if options.sizes and size not in options.sizes:
                continue
            model = make(name, config, options)
            for phase, users, mode in itertools.product(options.steps, options.batches, options.modes):
                options.batch = users
                label = f"{name} {size}{choose_experts(model, phase, options)}"
                row = {"model": label, "step": phase, "users": users, "mode": mode}
                done.append(row | measured(model, STEPS[phase], mode, options))
                yield done
            del model


def measured(model: Any, steps: Callable[..., Any], mode: str, options: argparse.Namespace) -> dict[str, str]:
    """The cells of a row: all lines by turns, as another program may disturb the host."""
    calls: dict[str, Callable[[], None]] = {}
    torch.compiler.reset()
    for line in (ALONE, *options.lines):
        calls[line] = steps(compiled(model, line, mode), model, options)
        for _ in range(3):  # compiles, warms up, and records a CUDA graph
            calls[line]()
    times: dict[str, list[float]] = {line: [] for line in calls}
    for _ in range(options.rounds):
        for line, step in calls.items():
            times[line].append(milliseconds(step, options))
    medians = {line: statistics.median(found) for line, found in times.items()}
    counted = {line: kernels(step, options) for line, step in calls.items()}
    row = {x: f"{time:.3f} ({medians[ALONE] / time:.2f} x{counted[x] or ''})" for x, time in medians.items()}
    own = counted[ALONE]
    if ALL in medians and own is not None and mode != "default":  # in that one a step waits for the host
        row[LIMIT] = f"{(medians[ALONE] - medians[ALL]) * 1e3 / own.small_time:.2f}"
    return row


def draw(picture: Path, done: list[dict[str, Any]]) -> dict[str, Path]:
    """The picture of a page, by what it shows: all chains' time divided by inductor's."""
    if not all(ALL in row for row in done):
        return {}
    times = [{line: float(row[line].split()[0]) for line in (ALONE, ALL)} for row in done]
    cells = [
        {"users": row["users"], "model": f"{row['model']}, {row['step']}, {row['mode']}", "ratio": x[ALL] / x[ALONE]}
        for row, x in zip(done, times, strict=True)
    ]
    write_heat_map(picture, cells, x="users", y="model", value="ratio")
    return {"Time of a step with all chains, divided by that of inductor alone": Path(picture.name)}


def main(arguments: list[str] | None = None) -> str:
    """Measure, and print the page or write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", type=lambda name: getattr(torch, name), default=torch.bfloat16)
    parser.add_argument("--tiny", action="store_true", help="models of two layers, to try the script")
    parser.add_argument("--models", nargs="*", default=["qwen3", "llama"], help="types of models")
    parser.add_argument("--sizes", nargs="*", choices=list(SIZES), help="hidden sizes; by default all")
    parser.add_argument("--steps", nargs="*", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--lines", nargs="*", choices=list(LINES)[1:], default=list(LINES)[1:], help="beside inductor")
    parser.add_argument("--modes", nargs="*", default=["default", "reduce-overhead"], help="modes of torch.compile")
    parser.add_argument("--batches", type=int, nargs="*", default=[1], help="users of a decode, prompts of a prefill")
    parser.add_argument("--experts", choices=["grouped_mm", "batched_mm"], help="by default as generate has them")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="the page's file")
    options = parser.parse_args(arguments)
    layers = next(iter((TINY if options.tiny else SIZES).values()))["num_hidden_layers"]
    note = NOTE.format(**vars(options) | {"dtype": str(options.dtype).removeprefix("torch."), "layers": layers})
    note += f"\ntransformers {transformers.__version__}, sgljit-compile {sgljit_compile.__version__}."
    page = ""
    torch.compiler.config.recompile_limit = 64  # one model is compiled by several backends
    with torch.no_grad():
        for done in rows(options):
            graphs = [{"graph": str(graph)} for graph in dict.fromkeys(map(str, sgljit_compile.explain()))]
            tables = {"Steps": done, "Chains in the graphs": graphs}
            plots = draw(options.output.with_suffix(".svg"), done) if options.output else {}
            page = write_results(options.output, "torch.compile", tables, note=note, plots=plots, device=options.device)
    print(page)
    return page


if __name__ == "__main__":
    main()
