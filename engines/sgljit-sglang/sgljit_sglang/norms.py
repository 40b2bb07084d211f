"""SGLang's norms by their plugin backend, or SGLang's own code for what sgljit does not support."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.batch_invariant_ops import is_batch_invariant_mode_enabled
from sglang.srt.layers.layernorm import Gemma3RMSNorm, Gemma4RMSNorm, GemmaRMSNorm, RMSNorm

from sgljit_engines.kernels import DTYPES, Op, try_rows

from .backend import give_backend
from .kernels import left, ran, works

Result = torch.Tensor | tuple[torch.Tensor, torch.Tensor]

_PLAIN = ("rmsnorm", "fused_add_rmsnorm")
_GEMMA = ("gemma_rmsnorm", "gemma_fused_add_rmsnorm")
_NEWER = (Gemma3RMSNorm, Gemma4RMSNorm)  # they call the addend eps
# By layer the ops that it may call, and how many of residual and post_residual_addition its forward takes.
_LAYERS: dict[Any, tuple[tuple[str, ...], int]] = {
    RMSNorm: (_PLAIN, 2),
    GemmaRMSNorm: (_GEMMA, 2),
    Gemma3RMSNorm: (_GEMMA, 1),
    Gemma4RMSNorm: ((_PLAIN[0], _GEMMA[0]), 0),
}


def replace(used: frozenset[str]) -> None:
    """Give the norms a plugin backend.

    Args:
        used: the ops that may be called.
    """
    for layer, (names, more) in _LAYERS.items():
        if used.intersection(names):
            give_backend(layer, _forward, _fits(layer, used, more), _op)


def _forward(
    self: Any,
    x: torch.Tensor,
    residual: torch.Tensor | None = None,
    post_residual_addition: torch.Tensor | None = None,
) -> Result:
    weight, eps = self.weight.data, _eps(self)
    name = _name(self, fused=residual is not None)
    rows = x.reshape(-1, weight.shape[0])
    if residual is None:
        out = torch.empty_like(rows, memory_format=torch.contiguous_format)
        return out.view(x.shape) if ran(name, rows, weight, out, eps) else self.forward_cuda(x)
    total = residual if post_residual_addition is None else residual + post_residual_addition
    total_rows = total.reshape(-1, weight.shape[0])
    if ran(name, rows, total_rows, weight, eps):
        return rows.view(x.shape), total_rows.view(total.shape)
    return self.forward_cuda(x, total)  # type: ignore[no-any-return]


def _fits(kind: Any, used: frozenset[str], more: int) -> Callable[..., bool]:
    """Whether a call of a layer is one that ours supports, as a function of what the layer's forward takes."""
    theirs = kind.forward_cuda

    def fits(
        self: Any,
        x: torch.Tensor,
        residual: torch.Tensor | None = None,
        post_residual_addition: torch.Tensor | None = None,
        *rest: Any,
        **kwargs: Any,
    ) -> bool:
        name = _name(self, fused=residual is not None)
        if name not in used:
            return False
        # A subclass with a forward of its own computes something else.
        is_plain = type(self).forward_cuda is theirs and _is_plain(self)
        # SGLang gives RMSNorm also the layer whose input it shall quantise.
        has_more = rest or kwargs or any(one is not None for one in (residual, post_residual_addition)[more:])
        if has_more or not is_plain or not _matches(self.weight, x, residual):
            left(name)
            return False
        return _works(name, x)

    return fits


def _op(self: Any, x: torch.Tensor, residual: torch.Tensor | None = None, *_more: Any, **_options: Any) -> str:
    """The op of a call of a layer."""
    return _name(self, fused=residual is not None)


def _name(layer: Any, *, fused: bool) -> str:
    if isinstance(layer, Gemma4RMSNorm):
        one_plus = layer.with_scale and layer.scale_shift == 1.0
    else:
        one_plus = not isinstance(layer, RMSNorm)
    return (_GEMMA if one_plus else _PLAIN)[fused]


def _eps(layer: Any) -> float:
    return layer.eps if isinstance(layer, _NEWER) else layer.variance_epsilon  # type: ignore[no-any-return]


def _is_plain(layer: Any) -> bool:
    """Whether a norm is in no mode that SGLang's own code has and ours has not."""
    return (
        getattr(layer, "variance_size_override", None) is None
        and not getattr(layer, "cast_x_before_out_mul", False)
        and getattr(layer, "_quant_linear", None) is None
        # Without a scale the weight is all ones; another shift has two meanings in SGLang's own forwards.
        and (not getattr(layer, "with_scale", False) or layer.scale_shift in (0.0, 1.0))
        and not is_batch_invariant_mode_enabled()
    )


def _matches(weight: torch.Tensor, x: torch.Tensor, residual: torch.Tensor | None) -> bool:
    if x.dtype != weight.dtype or x.dtype not in DTYPES or x.device != weight.device or x.numel() == 0:
        return False
    if x.shape[-1] != weight.shape[0]:
        return False
    return residual is None or (residual.dtype == x.dtype and residual.shape == x.shape and residual is not x)


def _works(name: str, x: torch.Tensor) -> bool:
    """Whether an op may be used for rows of this size, found out on rows of its own, few and many."""
    size, device = x.shape[-1], x.device.type
    num_tensors = 2 if name in (_PLAIN[1], _GEMMA[1]) else 1

    def trial(kernel: Op) -> None:
        weight = x.new_ones(size)
        try_rows(lambda rows: kernel(*(x.new_zeros(rows, size) for _ in range(num_tensors)), weight), size, device)

    return works(name, (size, x.dtype, device), trial)
