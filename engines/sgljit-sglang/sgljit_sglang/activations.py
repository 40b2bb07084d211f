"""SGLang's gated activations by hooks, or SGLang's own code for what sgljit does not support.

The hooks are around the functions that launch SGLang's kernels: layers call them, and so do routed experts. With a
plugin backend in place of hooks, SGLang would not select a layer's forward_cuda, and block FP8 fuses SiLU only if that
is selected.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from sgljit_engines.errors import InexactError
from sgljit_engines.kernels import DTYPES, Op

from . import ADAPTER
from .backend import around
from .kernels import left, ran, works

_MODULE = "sglang.kernels.ops.activation.activation"
_ACTIVATIONS = {"silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"}
_WHOLE = 16  # both halves of such rows consist of whole 16-byte loads in each dtype: one kernel serves all


def replace(used: frozenset[str]) -> None:
    """Register the hooks.

    Args:
        used: the ops that may be called.
    """
    for name in _ACTIVATIONS & used:
        around(f"{_MODULE}.{name}", functools.partial(_activate, name, ADAPTER.exact), name)


def _activate(
    name: str,
    is_exact: bool,
    theirs: Callable[..., torch.Tensor],
    input: torch.Tensor,  # noqa: A002 - as SGLang calls it
    out: torch.Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    # More arguments choose rows by their experts; ours computes all rows.
    if args or kwargs or not _fits(input, out):
        left(name)
    elif _works(name, input, theirs if is_exact else None):
        result = input.new_empty((*input.shape[:-1], input.shape[-1] // 2)) if out is None else out
        if ran(name, input, result, round_first=True) if is_exact else ran(name, input, result):
            return result
    return theirs(input, out, *args, **kwargs)


def _fits(x: torch.Tensor, out: torch.Tensor | None) -> bool:
    if x.dtype not in DTYPES or x.numel() == 0 or x.shape[-1] % _WHOLE or not x.is_contiguous():
        return False
    if out is None:
        return True
    shape = (*x.shape[:-1], x.shape[-1] // 2)
    return out.dtype == x.dtype and out.device == x.device and out.shape == shape and out.is_contiguous()


def _works(name: str, x: torch.Tensor, theirs: Callable[..., torch.Tensor] | None) -> bool:
    """Whether an op works; where SGLang's function is given, also whether it gives the same bits."""

    def trial(kernel: Op) -> None:
        kernel(x.new_zeros(1, _WHOLE))
        if theirs is not None:
            from sgljit_activation import bits  # the family is imported when its ops are called

            both = [functools.partial(kernel, out=None, round_first=True), theirs]
            ours, own = (lambda gate, up, call=call: call(torch.cat([gate, up], -1)) for call in both)
            if found := bits.difference(ours, own, x.dtype, x.device):
                raise InexactError(found)

    return works(name, (x.dtype, x.device.type), trial)
