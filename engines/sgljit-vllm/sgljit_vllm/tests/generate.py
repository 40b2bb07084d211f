"""A tiny model of random weights in a real vLLM, on the CPU: prints its tokens, and how often each op was called.

``python generate.py qwen3`` in an environment that ``environment.py`` made; ``SGLJIT_ENGINES`` switches sgljit. Words
behind the model:

- ``count``: count the calls that vLLM's parts make.
- ``compiled``: as vLLM compiles a model on the CPU, where it has no passes.
- ``passes``: as it compiles one on a GPU, with its passes. The result has the launches in the graphs, and how many
  nodes of its IR the passes saw.
- ``custom``: with vLLM's custom ops.
- ``monitor``: with ``--jit-monitor-mode error``, which the worker for the CPU starts as that for a GPU does. It starts
  for compiled models alone. A kernel is called that was not built before.
- ``quiet``: wait for the line of the log that comes after the warm-up.
- ``kernels``: norms and activations call ``torch.ops._C``, as those of vLLM 0.34 on a GPU, and there is no IR.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import json
import os
import re
import sys
import tempfile
import time
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
KERNELS = "_C"  # the namespace of vLLM's kernels
PROMPTS = ([5, 6, 7, 8], [900, 1, 33], list(range(40, 90)))


def count_calls() -> Counter[str]:
    """Count the calls of each op that vLLM's parts make from now on, but for those of compiled graphs."""
    from sgljit_vllm import dispatcher, layers, provider

    calls: Counter[str] = Counter()

    def counted(ran):
        @functools.wraps(ran)
        def call(name, *args, **kwargs):
            result = ran(name, *args, **kwargs)
            calls[name] += result
            return result

        return call

    for module in (dispatcher, layers, provider):
        module.ran = counted(module.ran)
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


def keep_passes(seen: Counter[str]) -> None:
    """Let vLLM compile for the CPU as it does for a GPU, and count the nodes of its IR that its passes see."""
    import torch
    from vllm.compilation.passes.ir.lowering_pass import VllmIRLoweringPass
    from vllm.compilation.passes.utility import fix_functionalization
    from vllm.platforms import current_platform

    kind = type(current_platform)
    theirs, lower = kind.check_and_update_config.__func__, VllmIRLoweringPass.__call__

    def check_and_update_config(cls, config):
        compilation = config.compilation_config
        before = compilation.mode, compilation.backend, compilation.ir_enable_torch_wrap
        theirs(cls, config)
        compilation.mode, compilation.backend, compilation.ir_enable_torch_wrap = before
        compilation.compile_sizes = []

    def counted(self, graph):
        seen.update(str(node.target).split(".")[1] for node in graph.nodes if "vllm_ir" in str(node.target))
        return lower(self, graph)

    kind.check_and_update_config = classmethod(check_and_update_config)
    VllmIRLoweringPass.__call__ = counted
    # The passes ask for GPU kernels by name.
    current_platform.import_kernels()
    keep_passes.library = torch.library.Library(KERNELS, "FRAGMENT")
    for name in set(re.findall(r"torch\.ops\._C\.(\w+)\.default", inspect.getsource(fix_functionalization))):
        if not hasattr(getattr(torch.ops, KERNELS), name):
            keep_passes.library.define(f"{name}(Tensor x) -> ()")


def call_kernels() -> None:
    """Let norms and activations call ``torch.ops._C``, and hide the IR from the adapter."""
    import torch
    from vllm import _custom_ops
    from vllm.model_executor.layers.activation import SiluAndMul
    from vllm.model_executor.layers.layernorm import RMSNorm

    import sgljit_vllm

    def norm(self, x, residual=None):
        if residual is not None:
            _custom_ops.fused_add_rms_norm(x, residual, self.weight.data, self.variance_epsilon)
            return x, residual
        out = torch.empty(x.shape, dtype=x.dtype)
        # vLLM's kernel for the CPU reads heads as if they had no gaps.
        _custom_ops.rms_norm(out, x.contiguous(), self.weight.data, self.variance_epsilon)
        return out

    def activation(self, x):
        self.op = getattr(torch.ops, KERNELS).silu_and_mul
        return self.forward_cuda(x)

    RMSNorm.forward_cpu, SiluAndMul.forward_cpu = norm, activation
    find_spec = importlib.util.find_spec
    sgljit_vllm.importlib.util.find_spec = lambda name: None if name == "vllm.ir" else find_spec(name)


def keep_monitor() -> None:
    """Let the worker for the CPU start vLLM's JIT monitor after its warm-up."""
    from vllm.v1.worker.cpu_worker import CPUWorker

    theirs = CPUWorker.compile_or_warm_up_model

    def compile_or_warm_up_model(self):
        times = theirs(self)
        self._maybe_activate_jit_monitor()
        return times

    CPUWorker.compile_or_warm_up_model = compile_or_warm_up_model


def launches(directory: Path) -> list[str]:
    """What a layer launches beside its matrix products, by the code of the compiled graphs in a cache.

    vLLM cuts a model at its attentions. The longest piece is the second half of a layer and the first of the next.
    """
    pieces = []
    for file in directory.rglob("*.py"):
        code = file.read_text(encoding="utf-8").partition("def call(")[2]
        names = [
            "".join(one) for one in re.findall(r"^ +(?:torch\.ops\.([\w.]+)|(cpp_fused_\w+))\(", code, re.MULTILINE)
        ]
        pieces.append([name for name in names if not name.startswith("_C.onednn_mm")])
    return max(pieces, key=len)


def main() -> None:
    model, words = sys.argv[1], sys.argv[2:]
    os.environ.update(VLLM_TARGET_DEVICE="cpu", VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # one process, whose calls can be counted
    import torch
    from vllm import LLM, SamplingParams, envs
    from vllm.utils import jit_monitor

    from sgljit_engines import adapter, report

    nodes: Counter[str] = Counter()
    if "kernels" in words:
        call_kernels()
    if "passes" in words:
        keep_passes(nodes)
    if "monitor" in words:
        keep_monitor()
    calls = count_calls() if "count" in words else Counter()
    config = {"pass_config": {"fuse_norm_quant": False, "fuse_act_quant": False}}  # the CPU has no kernels for these
    if "custom" in words:
        config["custom_ops"] = ["all"]
    # A directory that a later process finds again: vLLM's cache knows a model by it.
    directory = Path(tempfile.gettempdir()) / f"sgljit-vllm-{os.getuid()}-{model}"
    if not (directory / "model.safetensors").exists():
        directory.mkdir(exist_ok=True)
        save_model(directory, model)
    # bfloat16 ends in an illegal instruction in vLLM's own library on processors without AMX.
    llm = LLM(
        str(directory), skip_tokenizer_init=True, enforce_eager=not {"compiled", "passes"} & {*words},
        dtype="float32", max_model_len=256, seed=0, compilation_config=config,
        jit_monitor_mode="error" if "monitor" in words else "warn",
    )  # fmt: skip
    sampling = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True, detokenize=False)
    profile = torch.profiler.profile() if "passes" in words else None  # it sees the calls of graphs
    with profile or contextlib.nullcontext():
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], sampling, use_tqdm=False)
    if "monitor" in words:
        getattr(torch.ops, KERNELS).silu_and_mul(torch.empty(2, 16), torch.ones(2, 32))
    if "quiet" in words:
        time.sleep(adapter.QUIET_SECONDS + 1)
    events = profile.key_averages() if profile else []
    result = {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "calls": calls,
        "report": str(report()),
        "monitored": jit_monitor.is_active(),
        "kinds": sorted({use.kind for use in report()} - {"any"}),  # what is not by default has no kind
        "in_graphs": {event.key: event.count for event in events if event.key.startswith("sgljit_")},
        "nodes": nodes,
        "launches": launches(Path(envs.VLLM_CACHE_ROOT)) if "passes" in words else [],
    }
    print("RESULT", json.dumps(result))


if __name__ == "__main__":
    main()
