"""Which rows do the most used open models normalise?

From the config.json of each at https://huggingface.co/<name>: ``hidden_size``; for DeepSeek's latent rows
``q_lora_rank`` and ``kv_lora_rank``; for queries and keys ``num_attention_heads``, ``num_key_value_heads`` and
``head_dim``.
"""

from __future__ import annotations

from collections.abc import Mapping

Place = tuple[int, ...]
Heads = tuple[int, int, int]  # of the queries, of the keys, and the elements of each

RMSNORM: dict[str, list[int]] = {
    "HuggingFaceTB/SmolLM2-135M": [576],
    "HuggingFaceTB/SmolLM2-360M": [960],
    "Qwen/Qwen2.5-0.5B": [896],
    "Qwen/Qwen3-0.6B": [1024],
    "Qwen/Qwen2.5-1.5B": [1536],
    "Qwen/Qwen3-1.7B": [2048],
    "Qwen/Qwen3-4B": [2560],
    "Qwen/Qwen2.5-7B": [3584],
    "Qwen/Qwen3-8B": [4096],
    "Qwen/Qwen3-14B": [5120],
    "Qwen/Qwen3-32B": [5120],
    "Qwen/Qwen2.5-72B": [8192],
    "Qwen/Qwen3-30B-A3B": [2048],
    "Qwen/Qwen3-235B-A22B": [4096],
    "meta-llama/Llama-3.2-1B": [2048],
    "meta-llama/Llama-3.2-3B": [3072],
    "meta-llama/Llama-3.1-8B": [4096],
    "meta-llama/Llama-3.1-70B": [8192],
    "meta-llama/Llama-3.1-405B": [16384],
    "mistralai/Mistral-7B-v0.3": [4096],
    "mistralai/Mistral-Small-24B-Base-2501": [5120],
    "mistralai/Mixtral-8x22B-v0.1": [6144],
    "mistralai/Mistral-Large-Instruct-2407": [12288],
    "microsoft/Phi-3-mini-4k-instruct": [3072],
    "microsoft/phi-4": [5120],
    "openai/gpt-oss-20b": [2880],
    "openai/gpt-oss-120b": [2880],
    "deepseek-ai/DeepSeek-V3": [7168, 1536, 512],
    "moonshotai/Kimi-K2-Instruct": [7168, 1536, 512],
    "zai-org/GLM-4.5": [5120],
    "MiniMaxAI/MiniMax-M2": [3072],
}
GEMMA_RMSNORM: dict[str, list[int]] = {  # multiplies by 1 + weight
    "google/gemma-3-1b-it": [1152],
    "Qwen/Qwen3-Next-80B-A3B-Instruct": [2048],
    "google/gemma-2-2b-it": [2304],
    "google/gemma-3-4b-it": [2560],
    "google/gemma-2-9b-it": [3584],
    "google/gemma-3-12b-it": [3840],
    "google/gemma-2-27b-it": [4608],
    "google/gemma-3-27b-it": [5376],
}
LAYERNORM: dict[str, list[int]] = {
    "google-bert/bert-base-uncased": [768],
    "BAAI/bge-large-en-v1.5": [1024],
    "openai/whisper-large-v3": [1280],
    "microsoft/phi-2": [2560],
    "tiiuae/falcon-7b": [4544],
    "CohereLabs/c4ai-command-r-v01": [8192],
    "CohereLabs/c4ai-command-r-plus": [12288],
    "bigscience/bloom": [14336],
}
QKNORM: dict[str, Heads] = {
    "LiquidAI/LFM2-1.2B": (32, 8, 64),
    "Qwen/Qwen3-0.6B": (16, 8, 128),
    "Qwen/Qwen3-30B-A3B": (32, 4, 128),
    "Qwen/Qwen3-8B": (32, 8, 128),
    "Qwen/Qwen3-14B": (40, 8, 128),
    "Qwen/Qwen3-235B-A22B": (64, 4, 128),
    "Qwen/Qwen3-32B": (64, 8, 128),
    "zai-org/GLM-4.5": (96, 8, 128),
}
GEMMA_QKNORM: dict[str, Heads] = {
    "google/gemma-3-1b-it": (4, 1, 256),
    "google/gemma-3-4b-it": (8, 4, 256),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": (16, 2, 256),
    "google/gemma-3-12b-it": (16, 8, 256),
    "google/gemma-3-27b-it": (32, 16, 128),
}
QKNORM_ACROSS_HEADS: dict[str, tuple[int, int]] = {  # elements of all heads of the queries, and of the keys
    "allenai/OLMo-2-1124-7B": (4096, 4096),
    "allenai/OLMo-2-1124-13B": (5120, 5120),
    "allenai/OLMo-2-0325-32B": (5120, 1024),
    "MiniMaxAI/MiniMax-M2": (6144, 1024),
}


def places_of(models: Mapping[str, list[int] | Place]) -> list[Place]:
    """The rows of all models, each once: (size,), ascending, or the heads of the queries and keys."""
    found = [(size,) for sizes in models.values() if isinstance(sizes, list) for size in sizes]
    return sorted(set(found)) or list(dict.fromkeys(place for place in models.values() if isinstance(place, tuple)))


def models_of(place: Place, models: Mapping[str, list[int] | Place]) -> str:
    """The models that have such rows."""
    names = [name for name, rows in models.items() if place == rows or (isinstance(rows, list) and place[0] in rows)]
    return ", ".join(name.partition("/")[2] for name in names)
