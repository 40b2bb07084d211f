"""After ``sgljit prepare`` nothing is compiled for a model any more."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from sgljit_engines.shapes import MODEL_TYPES, read_config

from .tiny import MODELS, config, match, transformers

_GENERATE = """
    import sys, torch, sgljit_core, sgljit_transformers
    from sgljit_engines import kernels
    from transformers import AutoConfig, AutoModelForCausalLM
    directory, device, frozen = sys.argv[1:]
    if frozen == "frozen":
        sgljit_core.freeze("error")
    kernels.MOST_ELEMENTS = 1 << 17  # of rows as short as these, more are tried than `prepare` builds for
    config = AutoConfig.from_pretrained(directory)
    net = AutoModelForCausalLM.from_config(config, dtype=config.dtype).eval().to(device)
    assert sgljit_transformers.enable(net)
    ids = torch.full((2, 7), 5, device=device)
    net.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    assert any("forward" in vars(module) for module in net.modules())
"""


def python(*arguments: str, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SGLJIT_CACHE_DIR": str(cache), "SGLJIT_ENGINES": "strict"}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def artifacts(cache: Path) -> set[str]:
    """The artifacts of a cache, without what depends on the moment."""
    return {str(path.parent.relative_to(cache)) for path in cache.rglob("manifest.json")}


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", ["qwen3", "gemma3", "gpt_oss", "qwen3_moe"])
def test_a_prepared_model_generates_with_compiling_forbidden(name, device, tmp_path):
    settings = config(name)
    settings.architectures = None
    settings.dtype = torch.float32
    settings.save_pretrained(tmp_path / "model")
    model, script = str(tmp_path / "model"), textwrap.dedent(_GENERATE)
    python("-m", "sgljit_core", "prepare", "--model", model, "--engine", "transformers", cache=tmp_path / "prepared")
    python("-c", script, model, device, "frozen", cache=tmp_path / "prepared")
    python("-c", script, model, device, "free", cache=tmp_path / "cold")
    prepared, cold = artifacts(tmp_path / "prepared"), artifacts(tmp_path / "cold")
    assert cold <= prepared
    # On a GPU many tokens have kernels of their own; of experts `prepare` also builds those for ids of int32.
    assert device == "cuda" or name in ("gpt_oss", "qwen3_moe") or cold == prepared


_COMMON = {"vocab_size": 64, "hidden_size": 48, "intermediate_size": 32, "num_hidden_layers": 2, "pad_token_id": 0}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 20}
_SPECIAL = {
    "deepseek_v2": {**MODELS["deepseek_v3"][1], "topk_method": "greedy"},
    "deepseek_v3": MODELS["deepseek_v3"][1],
    "gpt_oss": MODELS["gpt_oss"][1],
}


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_table_of_model_types_agrees_with_transformers(model_type, tmp_path):
    """Its rows against the layers of the model that transformers makes: their ops, and the sizes of their weights."""
    heads = {key: value for key, value in _HEADS.items() if not (key == "head_dim" and "deepseek" in model_type)}
    options = {**_COMMON, **heads, **_SPECIAL.get(model_type, {})}
    settings = transformers.AutoConfig.for_model(model_type, **options)
    settings.dtype = torch.float32
    settings.save_pretrained(tmp_path)
    with torch.device("meta"):
        net = transformers.AutoModelForCausalLM.from_config(settings)
    layers = [(layer, of) for layer in net.modules() if (of := match(layer)) is not None]
    found = {(of.op, layer.weight.shape[0]) for layer, of in layers if of.family == "norm"}
    mlps = {(of.op, layer.gate_proj.out_features) for layer, of in layers if of.family == "activation"}
    shape = read_config(tmp_path)
    joined = model_type in ("glm4", "phi3")  # its two projections are one, which vLLM and SGLang make of all models
    assert mlps <= {(f"{shape.activation}_and_mul", size) for size in shape.mlp_sizes}
    assert bool(mlps) == (shape.traits.gated_mlp and not joined)
    sizes = {shape.hidden_size, *shape.latent_sizes}
    sizes |= {shape.head_dim} if shape.traits.qk_norm == "head" else set()
    if shape.traits.qk_norm == "all":
        sizes |= {shape.head_dim * heads for heads in (shape.all_query_heads, shape.all_kv_heads)}
    op = "gemma_rmsnorm" if shape.traits.one_plus else "rmsnorm"
    assert found == {(op, size) for size in sizes}
    of_layer = [of for layer in net.model.layers[0].children() if (of := match(layer)) is not None]
    assert [of.family for of in of_layer].count("norm") == (4 if shape.traits.sandwich_norm else 2)
    assert shape.traits.half_angles == any(getattr(of, "halves", False) for _, of in layers)
    code = inspect.getsource(sys.modules[type(net).__module__])
    rotations = "".join(re.findall(r"^def apply_rotary\w*\(.*?(?=^\w)", code, re.DOTALL | re.MULTILINE))
    assert shape.traits.interleaved == bool(re.search("interleave|view_as_complex", rotations))
    share = (settings.rope_parameters or {}).get("partial_rotary_factor") or 1
    assert shape.rope_dim == (options.get("qk_rope_head_dim") or share * shape.head_dim)
    assert shape.notes == ()
