"""SGLang's norms by their plugin backend, or SGLang's own code for what sgljit does not support."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.batch_invariant_ops import is_batch_invariant_mode_enabled
from sglang.srt.layers.layernorm import GemmaRMSNorm, RMSNorm

from sgljit_norm import fused_add_rmsnorm, gemma_fused_add_rmsnorm, gemma_rmsnorm, rmsnorm

from . import ADAPTER
from .backend import DTYPES, give_backend

_used: frozenset[str] = frozenset()

Op = Callable[..., None]
Result = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


def replace(used: frozenset[str]) -> None:
    """Give the norms a plugin backend.

    Args:
        used: the ops that may be called.
    """
    global _used  # noqa: PLW0603 - one SGLang in a process
    _used = used
    for layer, plain, fused in (
        (RMSNorm, rmsnorm, fused_add_rmsnorm),
        (GemmaRMSNorm, gemma_rmsnorm, gemma_fused_add_rmsnorm),
    ):
        if {plain.__name__, fused.__name__} & used:
            give_backend(layer, _forward(layer, plain, fused))


def _forward(kind: type, plain: Op, fused: Op) -> Callable[..., Result]:
    """The forward of a norm: ours where it supports the call, else SGLang's for CUDA."""
    theirs = kind.forward_cuda  # type: ignore[attr-defined]

    def forward_plugin(
        self: Any,
        x: torch.Tensor,
        residual: torch.Tensor | None = None,
        post_residual_addition: torch.Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Result:
        rest = (post_residual_addition, *args)
        # A subclass with a forward of its own computes something else.
        if args or kwargs or type(self).forward_cuda is not theirs or not _is_plain(self):
            return self.forward_cuda(x, residual, *rest, **kwargs)  # type: ignore[no-any-return]
        op = plain if residual is None else fused
        if not _fits(self, x, residual) or not _works(self, op, x):
            return self.forward_cuda(x, residual, *rest)  # type: ignore[no-any-return]
        weight, eps = self.weight.data, self.variance_epsilon
        rows = x.reshape(-1, weight.shape[0])
        if residual is None:
            out = torch.empty_like(rows, memory_format=torch.contiguous_format)
            plain(rows, weight, out=out, eps=eps)
            return out.view(x.shape)
        if post_residual_addition is not None:
            residual = residual + post_residual_addition
        residual_rows = residual.reshape(-1, weight.shape[0])
        fused(rows, residual_rows, weight, eps=eps)
        return rows.view(x.shape), residual_rows.view(residual.shape)

    return forward_plugin


def _is_plain(layer: Any) -> bool:
    """Whether a norm is in no mode that SGLang's own code has and ours has not."""
    return (
        getattr(layer, "variance_size_override", None) is None
        and not getattr(layer, "cast_x_before_out_mul", False)
        and getattr(layer, "_quant_linear", None) is None
        and not is_batch_invariant_mode_enabled()
    )


def _fits(layer: Any, x: torch.Tensor, residual: torch.Tensor | None) -> bool:
    weight = layer.weight
    if x.dtype != weight.dtype or x.dtype not in DTYPES or x.device != weight.device or x.numel() == 0:
        return False
    if x.shape[-1] != weight.shape[0]:
        return False
    return residual is None or (residual.dtype == x.dtype and residual.shape == x.shape and residual is not x)


def _works(layer: Any, op: Op, x: torch.Tensor) -> bool:
    """Whether an op may be used. The first call of each layer finds out, on a row of its own."""
    known: dict[str, bool] = layer.__dict__.setdefault("_sgljit", {})
    name = op.__name__
    if name not in known:
        if name not in _used or torch.compiler.is_compiling():
            return False  # nothing is built inside of a graph
        num_rows = 1 if op in (rmsnorm, gemma_rmsnorm) else 2
        rows = [x.new_zeros(1, x.shape[-1]) for _ in range(num_rows)]
        return ADAPTER.attempt_once(name, lambda: op(*rows, rows[0].new_ones(x.shape[-1])), known, name)
    return known[name]
