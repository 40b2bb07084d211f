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


def rotations(model: ModelShape) -> Iterator[tuple[str, str, list[torch.Tensor], dict[str, bool]]]:
    """As ``calls``, with the op's options: what attention does to the heads in a projection, once for each way."""
    dtype, size = getattr(torch, model.dtype), model.head_dim
    options = {"is_neox": False} if model.traits.interleaved else {}
    index, angles = torch.zeros(MOST, dtype=torch.int64), torch.empty(4096, model.rope_dim)
    if model.latent_sizes:  # the ends of the heads, and of the compressed row
        q = torch.empty(MOST, model.query_heads, 128 + model.rope_dim, dtype=dtype)[..., 128:]
        row = torch.empty(MOST, 1, model.cache_row, dtype=dtype)
        nope, k = row.split([model.cache_row - model.rope_dim, model.rope_dim], dim=-1)
        yield "rope", "apply_rope_inplace", [q, k, angles, index], options
        tensors = [q, nope, k, torch.empty_like(row), angles, index, index]
        yield "rope", "apply_rope_inplace_with_mla_kvcache", tensors, options
        return
    if not model.traits.interleaved:  # as transformers has them, in projections of their own
        numbers = model.query_heads, model.kv_heads
        apart = [torch.empty(1, MOST, number, size, dtype=dtype).transpose(1, 2) for number in numbers]
        angles_of_head = model.rope_dim // 2 if model.traits.half_angles else model.rope_dim
        given = [torch.empty(1, MOST, angles_of_head, dtype=dtype) for _ in "cs"]
        yield "rope", "apply_rotary_pos_emb", [*apart, *given, *map(torch.empty_like, apart)], {}
    heads = [model.query_heads, model.kv_heads, model.kv_heads]
    q, k, v = torch.empty(MOST, sum(heads), size, dtype=dtype).split(heads, dim=1)
    caches = [torch.empty(MOST, model.kv_heads, size, dtype=dtype) for _ in "kv"]
    yield "rope", "apply_rope_inplace", [q, k, angles, index], options
    yield "rope", "apply_rope_inplace_with_kvcache", [q, k, v, *caches, angles, index, index], options
    if model.traits.qk_norm == "head":
        weights, normed = [torch.empty(size, dtype=dtype) for _ in "qk"], dict(options)
        if model.traits.one_plus:
            normed["gemma"] = True
        yield "rope", "fused_qk_norm_rope", [q, k, *weights, angles, index], normed
        tensors = [q, k, v, *weights, *caches, angles, index, index]
        yield "rope", "fused_qk_norm_rope_with_kvcache", tensors, normed


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


def first(x: torch.Tensor, tokens: int) -> torch.Tensor:
    """The first tokens, which all but weights and the table of angles have a dimension of."""
    return x.narrow(x.shape.index(MOST), 0, tokens) if MOST in x.shape else x


def main(question: str, answer: str, device: str) -> None:
    """Run a pickled model; write the labels of what was asked for."""
    model = pickle.loads(Path(question).read_bytes())
    if device == "cuda":
        change(LD_PRELOAD="")
        arch.pretend(arch.parse_cuda_target("9.0", "a test"))
    address = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
    with recording(address) as recorder:
        made = [(*call, {}) for call in calls(model)]
        made += rotations(model) if device == "cuda" else []  # on the CPU they would be computed, for hours
        for family, op, tensors, options in made:
            function = getattr(ops[family], op)
            for tokens in range(1, MOST + 1):
                arguments: list[Any] = [x if x is None else first(x, tokens) for x in tensors]
                if device == "cuda":
                    shaped = [x if x is None else Shaped.of(x) for x in arguments]
                    arguments = [x if x is None else x.handed_over() for x in shaped]
                function(*arguments, **options)
    Path(answer).write_text("\n".join(sorted(wanted.spec.label for wanted in recorder.wanted)))


if __name__ == "__main__":
    main(*sys.argv[1:])
