"""A tiny model of random weights in a real vLLM, on the CPU: prints its tokens, and how often each op was called.

``python generate.py qwen3`` in an environment that ``environment.py`` made; ``SGLJIT_ENGINES`` switches sgljit.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

SIZES = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1000, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
}  # fmt: skip
MODELS = {
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu"},
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"},
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "sliding_window": 64,
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 64,
    },
}  # fmt: skip
PROMPTS = ([5, 6, 7, 8], [900, 1, 33], list(range(40, 90)))


def count_calls() -> Counter[str]:
    """Count the calls of each op that the layers make from now on."""
    from sgljit_vllm import layers

    calls: Counter[str] = Counter()

    def counted(op):
        @functools.wraps(op)
        def call(*args, **kwargs):
            calls[op.__name__] += 1
            return op(*args, **kwargs)

        return staticmethod(call)

    for layer in (layers.SgljitRMSNorm, layers.SgljitGemmaRMSNorm):
        layer._plain, layer._fused = counted(layer._plain), counted(layer._fused)
    for layer in (layers.SgljitSiluAndMul, layers.SgljitGeluAndMul):
        layer._ops = {approximate: counted(op).__func__ for approximate, op in layer._ops.items()}
    return calls


def save_model(directory: Path, name: str) -> None:
    """A model whose layers all matter: with vLLM's dummy weights, next to zero, each token repeats the last."""
    import torch
    import transformers

    (directory / "config.json").write_text(json.dumps({**SIZES, **MODELS[name], "torch_dtype": "float32"}))
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(directory))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for label, parameter in model.named_parameters():
            mean, spread = (0.7, 0.2) if parameter.dim() == 1 else (0.0, 0.005 if "embed" in label else 0.1)
            parameter.normal_(mean, spread, generator=generator)
    model.save_pretrained(directory)


def main() -> None:
    model, eager = sys.argv[1], "compiled" not in sys.argv[2:]
    os.environ.update(VLLM_TARGET_DEVICE="cpu", VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # one process, whose calls can be counted
    from vllm import LLM, SamplingParams

    calls = count_calls() if "count" in sys.argv[2:] else Counter()
    with tempfile.TemporaryDirectory() as directory:
        save_model(Path(directory), model)
        # bfloat16 ends in an illegal instruction in vLLM's own library on processors without AMX.
        llm = LLM(
            directory, skip_tokenizer_init=True, enforce_eager=eager, dtype="float32",
            max_model_len=256, seed=0, compilation_config={"custom_ops": ["all"]} if "custom" in sys.argv[2:] else None,
        )  # fmt: skip
        sampling = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], sampling, use_tqdm=False)
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    print("RESULT", json.dumps({"tokens": tokens, "calls": calls}))


if __name__ == "__main__":
    main()
