"""What a model asks for while it runs with 1 to 16384 tokens, by calls as an engine makes them; nothing is launched.

It shares nothing with the families' ``calls`` and with the recorder's tensors: its tensors are views of projections
that PyTorch made, of which no element is ever touched.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from sgljit_core import ops
from sgljit_core.builds.recording import recording
from sgljit_core.compilers import arch
from sgljit_engines.shapes import ModelShape
from sgljit_tools.environment import change
from sgljit_tools.recording.tensors import Shaped

MOST = 16384


def calls(model: ModelShape) -> Iterator[tuple[str, str, list[torch.Tensor | None]]]:
    """The family, the op, and its tensors, with the most tokens: the others have the first rows of these."""
    dtype = getattr(torch, model.dtype)

    def tensor(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    gemma = "gemma_" * model.traits.one_plus
    hidden = tensor(MOST, model.hidden_size)
    if model.rms_norm:
        yield "norm", f"{gemma}rmsnorm", [hidden, tensor(model.hidden_size), tensor(MOST, model.hidden_size)]
        yield "norm", f"{gemma}fused_add_rmsnorm", [hidden, tensor(MOST, model.hidden_size), tensor(model.hidden_size)]
        if model.traits.sandwich_norm:
            weights = [tensor(model.hidden_size), tensor(model.hidden_size)]
            yield "norm", f"{gemma}fused_rmsnorm_add_rmsnorm", [hidden, tensor(MOST, model.hidden_size), *weights]
    for size in model.latent_sizes:  # a slice of the projection that also has the rotary part
        rows = tensor(MOST, size + 64)[:, :size]
        yield "norm", f"{gemma}rmsnorm", [rows, tensor(size), tensor(MOST, size)]
    q_size, kv_size = model.query_heads * model.head_dim, model.kv_heads * model.head_dim
    if model.traits.qk_norm == "head":
        q, k, _ = tensor(MOST, q_size + 2 * kv_size).split([q_size, kv_size, kv_size], dim=1)
        weight = tensor(model.head_dim)
        heads = [x.unflatten(1, (-1, model.head_dim)) for x in (q, k)]
        yield "norm", f"{gemma}fused_inplace_qknorm", [*heads, weight, weight]
        for x in heads:
            yield "norm", f"{gemma}rmsnorm", [x.contiguous(), weight, None]
    for size in model.mlp_sizes:
        both = tensor(MOST, 2 * size)
        out = tensor(MOST, size)
        yield "activation", f"{model.activation}_and_mul", [both, out, None]
        yield "activation", f"{model.activation}_and_mul", [tensor(MOST, size), out, tensor(MOST, size)]


def main(question: str, answer: str, device: str) -> None:
    """Run a pickled model; write the labels of what was asked for."""
    model = pickle.loads(Path(question).read_bytes())
    if device == "cuda":
        change(LD_PRELOAD="")
        arch.pretend(arch.parse_cuda_target("9.0", "a test"))
    address = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
    with recording(address) as recorder:
        for family, op, tensors in calls(model):
            function = getattr(ops[family], op)
            for tokens in range(1, MOST + 1):
                arguments: list[Any] = [x if x is None or x.dim() == 1 else x[:tokens] for x in tensors]
                if device == "cuda":
                    shaped = [x if x is None else Shaped.of(x) for x in arguments]
                    arguments = [x if x is None else x.handed_over() for x in shaped]
                function(*arguments)
    Path(answer).write_text("\n".join(sorted(wanted.spec.label for wanted in recorder.wanted)))


if __name__ == "__main__":
    main(*sys.argv[1:])
