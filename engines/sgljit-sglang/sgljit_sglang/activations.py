"""SGLang's activations by their plugin backend, or SGLang's own code for what sgljit does not support."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers.activation import GeluAndMul, SiluAndMul

from sgljit_activation import gelu_and_mul, gelu_tanh_and_mul, silu_and_mul

from . import ADAPTER
from .backend import DTYPES, give_backend

Op = Callable[..., torch.Tensor]

_WHOLE = 16  # both halves of such rows consist of whole 16-byte loads in each dtype: one kernel serves all

_tried: dict[tuple[str, torch.dtype, str], bool] = {}


def replace(used: frozenset[str]) -> None:
    """Give the activations a plugin backend.

    Args:
        used: the ops that may be called.
    """
    for layer, ops in (
        (SiluAndMul, {"": silu_and_mul}),
        (GeluAndMul, {"none": gelu_and_mul, "tanh": gelu_tanh_and_mul}),
    ):
        of_layer = {approximate: op for approximate, op in ops.items() if op.__name__ in used}
        if of_layer:
            give_backend(layer, _forward(layer, of_layer))


def _forward(kind: type, ops: dict[str, Op]) -> Callable[..., torch.Tensor]:
    """The forward of an activation: ours where it supports the call, else SGLang's for CUDA."""
    theirs = kind.forward_cuda  # type: ignore[attr-defined]

    def forward_plugin(self: Any, x: torch.Tensor) -> torch.Tensor:
        op = ops.get(getattr(self, "approximate", ""))
        # A subclass with a forward of its own computes something else.
        if op is None or type(self).forward_cuda is not theirs or not _fits(x) or not _works(op, x):
            return self.forward_cuda(x)  # type: ignore[no-any-return]
        return op(x)

    return forward_plugin


def _fits(x: torch.Tensor) -> bool:
    return x.dtype in DTYPES and x.numel() > 0 and x.shape[-1] % _WHOLE == 0 and x.is_contiguous()


def _works(op: Op, x: torch.Tensor) -> bool:
    """Whether an op may be used; the first question for a dtype builds its kernel."""
    key = (op.__name__, x.dtype, x.device.type)
    if key not in _tried:
        if torch.compiler.is_compiling():
            return False  # nothing is built inside of a graph
        return ADAPTER.attempt_once(op.__name__, lambda: op(x.new_zeros(1, _WHOLE)), _tried, key)
    return _tried[key]
