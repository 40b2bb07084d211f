"""How long until a compiled model's first tokens: with empty caches, with a bundle, and with warm caches?

A fresh process makes a Llama of transformers with random weights, compiles it with the backend of sgljit-compile, and
takes a prompt and then one token behind it: two graphs. "Empty" is the process whose caches `sgljit cache bundle`
writes to a file. "Bundle" begins with empty directories, into which `sgljit cache unbundle` lays the file first, and
"bundle, by the process" with empty ones into which it lays the file itself, behind its imports. "Warm" runs in the
directories of "empty". They take turns:

    python bench/bundle.py [--rounds 3] [--tiny] [--output bench/results/bundle.md]

Runs on a GPU, or on the CPU, where --tiny takes a model of two layers. Needs transformers and sgljit-remote.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from sgljit_tools.benchmark import results

SIZE = {"num_hidden_layers": 8, "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 16}
TINY = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
PROMPT = 32
CACHES = {
    "SGLJIT_CACHE_DIR": "sgljit",
    "TORCHINDUCTOR_CACHE_DIR": "torch",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "driver",
}
NOTE = """
Seconds, medians of {rounds} rounds; a Llama of {layers} layers, {hidden} wide, with random weights, {dtype}; the bundle
has {size:.1f} MB. "Laid out": all of `sgljit cache unbundle`, which imports torch and asks for the GPU, or
`sgljit_remote.unbundle` in the process. "Imports": torch, transformers, and the model on the device. "First token":
the compiled prompt of {prompt} tokens, to its result. "Second token": the compiled step behind it. "Process": from its
start to its end, without what the command laid out.
"""


def serve(tiny: bool, bundle: Path | None) -> dict[str, float]:
    """Seconds of a process until its model's first and second token, in which it may lay out a bundle."""
    start = time.perf_counter()
    import torch
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = {**(TINY if tiny else SIZE), "num_key_value_heads": 2, "vocab_size": 32000, "max_position_embeddings": 2048}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**size)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        cache = transformers.StaticCache(config=config, max_cache_len=2 * PROMPT)
        ids = torch.randint(3, 32000, (1, PROMPT))
        position = torch.tensor([[PROMPT]])
    found = {"imports": time.perf_counter() - start}
    if bundle is not None:
        import sgljit_remote

        begin = time.perf_counter()
        sgljit_remote.unbundle(bundle)
        found["laid out"] = time.perf_counter() - begin
    compiled = torch.compile(model, backend="sgljit")
    with torch.no_grad():
        for name, tokens, places in (("first token", ids, None), ("second token", ids[:, -1:], position)):
            begin = time.perf_counter()
            logits = compiled(tokens, past_key_values=cache, position_ids=places, use_cache=True).logits
            assert bool(torch.isfinite(logits[0, -1]).all())  # also waits for the device
            found[name] = time.perf_counter() - begin
    return found


def sgljit(*arguments: str, **environment: str) -> str:
    """The output of a command."""
    return process(["-m", "sgljit_core", *arguments], environment)


def process(command: Sequence[str], environment: dict[str, str]) -> str:
    """The output of a fresh process. Raises SystemExit with its errors."""
    done = subprocess.run(
        [sys.executable, *command], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{command} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def caches(place: Path) -> dict[str, str]:
    """The environment of a machine whose caches are in a directory."""
    for name in CACHES.values():
        (place / name).mkdir(parents=True, exist_ok=True, mode=0o700)
    return {variable: str(place / name) for variable, name in CACHES.items()}


def measured(place: Path, program: list[str]) -> tuple[dict[str, dict[str, float]], int]:
    """A round: seconds by the state of the caches, and the bytes of the bundle."""
    bundle, key = place / "model.bundle", place / "release"
    process(["-m", "sgljit_remote", "key", "new", str(key)], {})
    trusted = {"SGLJIT_TRUSTED_KEYS": f"{key}.pub"}
    first, second, third = (caches(place / name) for name in ("first", "second", "third"))

    def timed(name: str, environment: dict[str, str], *before: str, more: Sequence[str] = ()) -> None:
        start = time.perf_counter()
        printed = process([*before, *program, *more], environment)
        whole = time.perf_counter() - start
        line = next(line for line in printed.splitlines() if line.startswith("{"))
        rows[name] = {**json.loads(line), "process": whole}

    rows: dict[str, dict[str, float]] = {}
    timed("empty", first, "-m", "sgljit_core", "cache", "bundle", str(bundle), "--sign", str(key), "--")
    start = time.perf_counter()
    sgljit("cache", "unbundle", str(bundle), **second, **trusted)
    laid_out = time.perf_counter() - start
    timed("bundle", {**second, **trusted})
    rows["bundle"]["laid out"] = laid_out
    timed("bundle, by the process", {**third, **trusted}, more=["--bundle", str(bundle)])
    timed("warm", first)
    return rows, bundle.stat().st_size


def main() -> None:
    """Measure, print the page, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="a model of two layers")
    parser.add_argument("--output", type=Path, help="write the page here")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--bundle", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    tiny = ["--tiny"] if options.tiny else []
    if options.serve:
        print(json.dumps(serve(options.tiny, options.bundle)))
        return
    rounds = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as place:
            rounds.append(measured(Path(place), [__file__, "--serve", *tiny]))
    rows = []
    for state in ("empty", "bundle", "bundle, by the process", "warm"):
        found = [times[state] for times, _ in rounds]
        row = {name: f"{statistics.median(one[name] for one in found):.2f}" for name in found[0]}
        rows.append({"caches": state, "laid out": "", **row})
    size = TINY if options.tiny else SIZE
    note = NOTE.format(
        rounds=options.rounds,
        layers=size["num_hidden_layers"],
        hidden=size["hidden_size"],
        dtype="bfloat16",
        prompt=PROMPT,
        size=statistics.median(size for _, size in rounds) / 1e6,
    )
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    title = "A compiled model's first tokens with a bundle"
    sys.stdout.write(results.write_results(options.output, title, {"": rows}, note=note, device=device))


if __name__ == "__main__":
    main()
