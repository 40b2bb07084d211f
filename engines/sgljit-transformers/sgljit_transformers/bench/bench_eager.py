"""How much faster does a model of transformers run, without a line changed in it?

Random weights, batch and context as a chat has them: one token at a time for one user, and prompts of four users at
once. Each row is the whole model, timed by the clock until the device has finished: in eager mode the host is most of
it. Beside all layers on sgljit's ops stand the layers of one kind alone, and torch.compile as transformers recommends
it, with a static cache.

``python -m sgljit_transformers.bench.bench_eager --output bench/results/transformers_eager.md``
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

import sgljit_transformers
from sgljit_tools.benchmark import Figure, measure
from sgljit_tools.benchmark.results import write_results

_COMMON = {"vocab_size": 32000, "max_position_embeddings": 8192, "head_dim": 128, "num_key_value_heads": 8}
SIZES: dict[str, dict[str, int]] = {
    "16 x 2048": {"num_hidden_layers": 16, "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 16},
    "16 x 4096": {"num_hidden_layers": 16, "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32},
}
TINY = {
    "2 x 64": {
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
SPECIAL: dict[str, dict[str, int]] = {
    "qwen3_moe": {"num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 768},
    "gpt_oss": {"num_local_experts": 8, "num_experts_per_tok": 4, "intermediate_size": 2048},
}

ALONE, OURS = "eager", "sgljit"
KINDS = ("hidden norms", "q and k norms", "rotations", "activations")  # of Qwen3
COMPILED = {"torch.compile": "", "torch.compile, sgljit": "all"}

NOTE = """
Models in {dtype} with random weights, as type, layers x hidden size. Milliseconds, the median of {repeats} runs, by
the clock. Prefill is one forward of {batch} prompts of {prompt} tokens; decode is a token of one user after {prompt}
tokens, the mean of {tokens} tokens in a row. In brackets: eager's time divided by this one's.
"eager" is the model alone, and "torch.compile" is `torch.compile(model)` with a static cache in decode.
"hidden norms", "q and k norms", "rotations" and "activations" are eager with this kind of layer alone on sgljit's op,
for Qwen3.
The columns before torch.compile's are measured by turns, in {rounds} rounds, as another program may disturb the host.
"""


def make(size: dict[str, int], device: str, dtype: torch.dtype, model: str = "qwen3") -> Any:
    """A model with random weights, of a type as transformers names it."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model, **{**_COMMON, **size, **SPECIAL.get(model, {})}, use_cache=True)
    auto: Any = transformers.AutoModelForCausalLM  # untyped
    with torch.device(device):
        return auto.from_config(config, dtype=dtype).eval()


@contextmanager
def on_sgljit(model: Any, kinds: str) -> Iterator[None]:
    """The layers of some kinds on sgljit's ops; the model's own again afterwards."""
    attentions = [layer.self_attn for layer in model.model.layers]
    norms = ("input_layernorm", "post_attention_layernorm")
    parts = {
        "": [],
        "all": [model],
        "q and k norms": attentions,
        "rotations": attentions,
        "activations": [layer.mlp for layer in model.model.layers],
        "hidden norms": [model.model.norm, *(getattr(layer, n) for layer in model.model.layers for n in norms)],
    }[kinds]
    with ExitStack() as stack:
        for part in parts:
            ops = {"q and k norms": "norm", "rotations": "rope"}.get(kinds, "on")
            stack.enter_context(sgljit_transformers.enabled(part, ops=ops))
        yield


def timed(options: argparse.Namespace, run: Callable[..., None], prepared: Callable[[], Any] = lambda: None) -> float:
    """Milliseconds of ``run(prepared())``, the median of several; what is prepared does not count."""

    def finish() -> None:
        if options.device == "cuda":
            torch.cuda.synchronize()

    def once() -> float:
        argument = prepared()
        finish()
        start = time.perf_counter()
        run(argument)
        finish()
        return (time.perf_counter() - start) * 1e3

    warm_up = 2  # the first call may compile
    times: list[float] = [once() for _ in range(warm_up + options.repeats)]
    return statistics.median(times[warm_up:])


def prefill(call: Any, options: argparse.Namespace, model: Any) -> float:
    """Milliseconds of a forward of whole prompts."""
    ids = torch.randint(3, model.config.vocab_size, (options.batch, options.prompt), device=options.device)
    return timed(options, lambda _: call(ids, use_cache=False, logits_to_keep=1))


def decode(call: Any, options: argparse.Namespace, model: Any, static: bool) -> float:
    """Milliseconds of one token, with the context of a prompt."""
    ids = torch.randint(3, model.config.vocab_size, (1, options.prompt), device=options.device)
    length = options.prompt + options.tokens
    caches: dict[bool, Callable[[], Any]] = {
        True: lambda: transformers.StaticCache(config=model.config, max_cache_len=length),
        False: lambda: transformers.DynamicCache(config=model.config),
    }

    def prepared() -> Any:
        cache = caches[static]()
        model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return cache

    def run(cache: Any) -> None:
        token = torch.full((1, 1), 5, device=options.device)
        for place in range(options.prompt, length):
            position = torch.full((1, 1), place, device=options.device)
            logits = call(token, past_key_values=cache, position_ids=position, use_cache=True).logits
            token = logits[:, -1].argmax(-1, keepdim=True)

    return timed(options, run, prepared) / int(options.tokens)


def chosen(options: argparse.Namespace) -> dict[str, dict[str, int]]:
    """The sizes to measure."""
    sizes = TINY if options.tiny else SIZES
    return {name: size for name, size in sizes.items() if options.sizes is None or name in options.sizes}


def models(options: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """The rows of whole models, after each step: torch.compile takes minutes, and may be cut short."""
    rows: list[dict[str, Any]] = []
    compiled = [] if options.compiled == [] else list(COMPILED)  # the columns
    for kind, (size_name, size) in itertools.product(options.models, chosen(options).items()):
        model, name = make(size, options.device, options.dtype, kind), f"{kind}, {size_name}"
        several: dict[tuple[str, str], list[float]] = {}
        for _ in range(options.rounds):
            for label in (ALONE, OURS, *(KINDS if kind == "qwen3" else ())):
                kinds = {ALONE: "", OURS: "all"}.get(label, label)
                with on_sgljit(model, kinds):
                    several.setdefault(("prefill", label), []).append(prefill(model, options, model))
                    several.setdefault(("decode", label), []).append(decode(model, options, model, static=False))
        times: dict[str, dict[str, float]] = {"prefill": {}, "decode": {}}
        for (phase, label), each in several.items():
            times[phase][label] = statistics.median(each)
        yield [*rows, *_rows(name, times, compiled)]
        for label, kinds in COMPILED.items():
            if options.compiled is not None and size_name not in options.compiled:
                continue
            torch.compiler.reset()
            with on_sgljit(model, kinds):
                call = torch.compile(model)
                times["prefill"][label] = prefill(call, options, model)
                times["decode"][label] = decode(call, options, model, static=True)
            yield [*rows, *_rows(name, times, compiled)]
        rows += _rows(name, times, compiled)
        del model


def _rows(name: str, times: dict[str, dict[str, float]], compiled: list[str]) -> Iterator[dict[str, Any]]:
    for phase, columns in times.items():
        eager = columns[ALONE]
        cells = {label: _cell(eager, columns.get(label)) for label in (ALONE, OURS, *KINDS, *compiled)}
        yield {"model": name, "phase": phase, **cells, "eager": f"{eager:.2f}"}


def _cell(eager: float, value: float | None) -> str:
    return "not measured" if value is None else f"{value:.2f} ({eager / value:.2f} x)"


def layers(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one layer of Qwen3: microseconds of a call, host included."""
    rows = []
    for name, size in chosen(options).items():
        config = {**_COMMON, **size}
        hidden, heads, head_dim = (config[key] for key in ("hidden_size", "num_attention_heads", "head_dim"))
        for what, shape in (
            ("norm of hidden, decode", (1, 1, hidden)),
            ("norm of q, decode", (1, 1, heads, head_dim)),
            ("norm of hidden, prefill", (options.batch, options.prompt, hidden)),
            ("norm of q, prefill", (options.batch, options.prompt, heads, head_dim)),
        ):
            cls = transformers.models.qwen3.modeling_qwen3.Qwen3RMSNorm
            layer = cls(shape[-1]).to(options.device, options.dtype).eval()
            x = torch.randn(shape, device=options.device, dtype=options.dtype)
            rows.append(_layer(name, what, layer, x))
        make_mlp: Any = transformers.models.qwen3.modeling_qwen3.Qwen3MLP  # untyped
        mlp = make_mlp(transformers.AutoConfig.for_model("qwen3", **config)).to(options.device, options.dtype).eval()
        for phase, tokens in (("decode", (1, 1)), ("prefill", (options.batch, options.prompt))):
            x = torch.randn(*tokens, hidden, device=options.device, dtype=options.dtype)
            rows.append(_layer(name, f"MLP, {phase}", mlp, x))
    return rows


def _layer(name: str, what: str, layer: torch.nn.Module, x: torch.Tensor) -> dict[str, Any]:
    row: dict[str, Any] = {"model": name, "layer": what, "input": " x ".join(map(str, x.shape))}
    figures: dict[str, list[Figure]] = {"eager": [], "sgljit": []}
    for _ in range(3):  # by turns, as another program may disturb the host
        figures["eager"].append(measure(layer, [(x,)], graph=False))
        with sgljit_transformers.enabled(layer):
            figures["sgljit"].append(measure(layer, [(x,)], graph=False))
    row |= {name: min(turns, key=lambda figure: figure.microseconds) for name, turns in figures.items()}
    row["eager / sgljit"] = row["eager"].microseconds / row["sgljit"].microseconds
    return row


def main(arguments: list[str] | None = None) -> str:
    """Measure, and print the page or write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", type=lambda name: getattr(torch, name), default=torch.bfloat16)
    parser.add_argument("--tiny", action="store_true", help="a model of two layers, to try the script")
    parser.add_argument("--models", nargs="*", default=["qwen3"], help="types, such as llama gemma3_text qwen3_moe")
    parser.add_argument("--sizes", nargs="*", choices=list(SIZES), help="the sizes to measure; by default all")
    parser.add_argument("--compiled", nargs="*", help="the sizes that torch.compile is measured for; all, or none")
    parser.add_argument("--batch", type=int, default=4, help="prompts of a prefill")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a decode")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="the page's file")
    options = parser.parse_args(arguments)
    note = NOTE.format(**vars(options) | {"dtype": str(options.dtype).removeprefix("torch.")})
    note += f"\ntransformers {transformers.__version__}, sgljit-transformers {sgljit_transformers.__version__}. "
    note += "The second table is one layer of Qwen3: microseconds of a call, host included, the best of three turns."
    page = ""
    with torch.no_grad():
        of_layers = layers(options)
        for rows in models(options):
            tables = {"Models": rows, "Layers": of_layers}
            page = write_results(options.output, "transformers, eager", tables, note=note, device=options.device)
    print(page)
    return page


if __name__ == "__main__":
    main()
