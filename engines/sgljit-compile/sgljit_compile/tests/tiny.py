"""Tiny models with random weights, and small functions as a graph that the pass has seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import unset_fake_temporarily

from sgljit_compile.adapter import FAMILIES
from sgljit_compile.records import Graph
from sgljit_compile.rewriting import rewrite

EVERYWHERE = dict.fromkeys(FAMILIES, frozenset({"cpu", "cuda"}))

_COMMON = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
_GROUPED = {"grouped attention": 2}
_CHOICE = {"routing": 2, "order of experts": 2}
_EXPERTS = {"num_experts_per_tok": 2, "num_experts": 4, "moe_intermediate_size": 32}

# The class of the config, what is special about it, and the chains of a decode with a static cache.
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "qwen3": ("Qwen3Config", {"head_dim": 16}, {"qk-norm + rope + store": 2, "add + norm": 4, **_GROUPED}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {"head_dim": 16, **_EXPERTS},
        {"qk-norm + rope + store": 2, "add + norm": 2, **_CHOICE, **_GROUPED},
    ),
    "llama": ("LlamaConfig", {}, {"rope + store": 2, "add + norm": 4, **_GROUPED}),
    "gemma": ("GemmaConfig", {"head_dim": 16}, {"rope + store": 2, "add + norm with 1 + weight": 4, **_GROUPED}),
    "gemma3": (
        "Gemma3TextConfig",
        {"head_dim": 16, "sliding_window": 8},
        {"qk-norm + rope": 2, "sliding window": 2, "norm + add + norm with 1 + weight": 4, **_GROUPED},
    ),
    "glm4": (
        "Glm4Config",
        {"head_dim": 16},
        {"norm + add + norm": 4, **_GROUPED},
    ),
    "gpt_oss": (
        "GptOssConfig",
        {
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
        {"rope + store": 2, "add + norm": 2, **_CHOICE, "attention with sinks": 2},
    ),
}


def mostly_slow(*cases: Any) -> list[Any]:
    """The values of a parameter: the quick tests take the first, the slow ones the others."""
    return [cases[0], *(pytest.param(case, marks=pytest.mark.slow) for case in cases[1:])]


def model(name: str, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Any:
    """A model whose norms have weights that tell ``weight`` and ``1 + weight`` apart."""
    transformers = pytest.importorskip("transformers", reason="pip install 'sgljit-compile[test]'")
    cls, special, _ = MODELS[name]
    config = getattr(transformers, cls)(**{**_COMMON, **special})
    generator = torch.Generator().manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            mean, spread = (0.7, 0.2) if parameter.dim() == 1 else (0.0, 0.1)
            parameter.normal_(mean, spread, generator=generator)
    return made.to(device, dtype)


def prompt(batch: int = 2, length: int = 9, device: str = "cpu") -> torch.Tensor:
    return torch.randint(3, 128, (batch, length), generator=torch.Generator().manual_seed(1)).to(device)


def decoded(call: Any, net: Any, ids: torch.Tensor, steps: int = 3, length: int = 32) -> tuple[torch.Tensor, Any]:
    """The logits of some tokens after a prompt, and the static cache behind them."""
    import transformers

    cache = transformers.StaticCache(config=net.config, max_cache_len=length)
    token, logits = ids[:, -1:].clone(), []
    with torch.no_grad():
        net(ids, None, None, cache, use_cache=True)  # by its place: transformers 5.24 calls it cache
        for step in range(steps):
            position = torch.full((1, 1), ids.shape[1] + step, device=ids.device)
            found = call(token, None, position, cache, use_cache=True).logits
            logits.append(found)
            token = found[:, -1].argmax(-1, keepdim=True)
    return torch.stack(logits), cache


def seen(function: Callable[..., Any], *inputs: Any, **options: Any) -> tuple[Any, Graph, Any]:
    """The result of a function after the pass, what the pass did, and the graph: ATen, run without a compiler."""
    record, graphs = Graph(), []

    def compiler(module: Any, _inputs: Any) -> Any:
        with unset_fake_temporarily():
            rewrite(module.graph, options.get("ops", EVERYWHERE), record)
        module.graph.lint()
        module.recompile()
        graphs.append(module)
        return module

    backend = aot_autograd(
        fw_compiler=compiler,
        inference_compiler=compiler,
        decompositions=select_decomp_table(),
        keep_inference_input_mutations=True,
    )
    torch.compiler.reset()
    with torch.no_grad():
        result = torch.compile(function, backend=backend, fullgraph=True, dynamic=options.get("dynamic"))(*inputs)
    (graph,) = graphs
    return result, record, graph
