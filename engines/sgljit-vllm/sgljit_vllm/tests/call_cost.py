"""Print what a call of a layer or kernel costs in a real vLLM on the CPU, one row of 64 in float32, in microseconds.

``python call_cost.py`` in an environment that ``environment.py`` made; ``SGLJIT_ENGINES`` switches sgljit. It is the
processor time of one thread, the best of 100 turns of 500 calls.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable


def best(call: Callable[[], object]) -> float:
    seconds = []
    for _ in range(100):
        began = time.thread_time()
        for _ in range(500):
            call()
        seconds.append(time.thread_time() - began)
    return min(seconds) / 500 * 1e6


def main() -> None:
    os.environ["VLLM_TARGET_DEVICE"] = "cpu"
    import torch
    from vllm.config import CompilationMode, VllmConfig, set_current_vllm_config
    from vllm.platforms import current_platform
    from vllm.plugins import load_general_plugins

    torch.set_num_threads(1)
    load_general_plugins()
    from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

    current_platform.import_kernels()
    config = VllmConfig(compilation_config={"mode": CompilationMode.NONE, "custom_ops": ["all"]})
    config.kernel_config.ir_op_priority.set_default()  # as a worker does
    x, residual, gates, out = torch.randn(1, 64), torch.randn(1, 64), torch.randn(1, 64), torch.empty(1, 32)
    silu_and_mul = getattr(torch.ops, "_C").silu_and_mul  # noqa: B009 - vLLM's namespace, no private name of torch
    with set_current_vllm_config(config), torch.inference_mode():
        norm, of_gemma = RMSNorm(64), GemmaRMSNorm(64)
        calls = {
            "RMSNorm": lambda: norm(x),
            "RMSNorm with a residual": lambda: norm(x, residual),
            "GemmaRMSNorm": lambda: of_gemma(x),
            "GemmaRMSNorm with a residual": lambda: of_gemma(x, residual),
            "torch.ops._C.silu_and_mul": lambda: silu_and_mul(out, gates),
        }
        for name, call in calls.items():
            print(f"| {name} | {best(call):.2f} |")


if __name__ == "__main__":
    main()
