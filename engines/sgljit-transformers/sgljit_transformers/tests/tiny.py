"""Tiny models with random weights: the real classes of transformers, of one layer's size."""

from __future__ import annotations

import pytest
import torch

from sgljit_transformers.layers import match

transformers = pytest.importorskip("transformers", reason="pip install 'sgljit-transformers[test]'")
pytest.importorskip("kernels", reason="pip install 'sgljit-transformers[test]'")

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

# The class of the config, what is special about it, the op and the number of its norms.
MODELS = {
    "llama": ("LlamaConfig", {}, "rmsnorm", 5),
    "qwen3": ("Qwen3Config", {"head_dim": 16}, "rmsnorm", 9),
    "mistral": ("MistralConfig", {"head_dim": 16}, "rmsnorm", 5),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 16, "sliding_window": 8}, "gemma_rmsnorm", 13),
    "gpt_oss": (
        "GptOssConfig",
        {
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
        "rmsnorm",
        5,
    ),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {"head_dim": 16, "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 48},
        "rmsnorm",
        9,
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        {
            "num_key_value_heads": 4,
            "moe_intermediate_size": 32,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "q_lora_rank": 32,
            "kv_lora_rank": 24,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "first_k_dense_replace": 1,
        },
        "rmsnorm",
        9,
    ),
}


def config(name: str):
    cls, special, _, _ = MODELS[name]
    return getattr(transformers, cls)(**{**_COMMON, **special})


def model(name: str, dtype: torch.dtype = torch.float32, device: str = "cpu"):
    """A model whose norms have weights that tell ``weight`` and ``1 + weight`` apart."""
    generator = torch.Generator().manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(config(name)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            mean, spread = (0.7, 0.2) if parameter.dim() == 1 else (0.0, 0.1)
            parameter.normal_(mean, spread, generator=generator)
    return made.to(device, dtype)


def of_type(model_type: str, **options):
    """A model of any type that transformers has."""
    return transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(model_type, **{**_COMMON, **options})
    ).eval()


def prompt(device: str = "cpu") -> torch.Tensor:
    return torch.randint(3, 128, (2, 9), generator=torch.Generator().manual_seed(1)).to(device)


def mlps(name: str) -> dict[str, str]:
    """The op of each of a model's gated MLPs: some have none beside their experts."""
    if name in ("gpt_oss", "qwen3_moe"):
        return {}
    second = "model.layers.1.mlp" + ".shared_experts" * (name == "deepseek_v3")
    return dict.fromkeys(("model.layers.0.mlp", second), "gelu_tanh_and_mul" if name == "gemma3" else "silu_and_mul")


def rotations(name: str) -> dict[str, str]:
    """The op of each attention: DeepSeek's has two kinds of rotation."""
    names = () if name == "deepseek_v3" else ("model.layers.0.self_attn", "model.layers.1.self_attn")
    return dict.fromkeys(names, "apply_rotary_pos_emb")


def experts(name: str) -> dict[str, str]:
    """The ops of routed experts and of their choice: DeepSeek's first layer is dense, and it chooses by a sigmoid."""
    layers = {"gpt_oss": (0, 1), "qwen3_moe": (0, 1), "deepseek_v3": (1,)}.get(name, ())
    router = {"gpt_oss": "router", "qwen3_moe": "gate"}.get(name)
    found = {f"model.layers.{i}.mlp.experts": "expert_matvec" for i in layers}
    return found | {f"model.layers.{i}.mlp.{router}": "topk_softmax" for i in layers if router}


def norms(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    return {name: layer for name, layer in module.named_modules() if type(layer).__name__.endswith("RMSNorm")}


def generate(module: torch.nn.Module, ids: torch.Tensor, tokens: int = 12) -> torch.Tensor:
    return module.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)


def op_of(layer: torch.nn.Module) -> str | None:
    found = match(layer)
    return found and found.op
