"""vLLM's GemmaRMSNorm as a layer that calls sgljit, where vLLM runs the layer's custom op, as in an eager model.

vLLM has no kernel for it: its own code adds one to the weight at each call. Under inductor the layer is vLLM's.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from vllm import envs
from vllm.model_executor.custom_op import CustomOp, op_registry_oot
from vllm.model_executor.layers.layernorm import GemmaRMSNorm

from . import ADAPTER
from .kernels import INVARIANT, as_rows, ran
from .norms import works_for

OPS = ("gemma_rmsnorm", "gemma_fused_add_rmsnorm")

Result = torch.Tensor | tuple[torch.Tensor, torch.Tensor]

_used: set[str] = set()


def replace(used: frozenset[str]) -> None:
    """Make vLLM create this layer where it would create its own.

    Args:
        used: the ops that may be called.
    """
    is_first = not _used  # vLLM may load plugins more than once
    _used.update(used.intersection(OPS))
    if envs.VLLM_BATCH_INVARIANT:
        ADAPTER.leave(_used, INVARIANT)
    elif _used:
        if is_first and ADAPTER.shadow:
            _compare()
        put_layer(GemmaRMSNorm, SgljitGemmaRMSNorm)


def _compare() -> None:
    """Let the layer compare some calls with vLLM's native code, for ``SGLJIT_SHADOW``."""
    ours = SgljitGemmaRMSNorm._ours  # noqa: SLF001 - its own

    def seam(theirs: Any, self: Any, x: torch.Tensor, residual: torch.Tensor | None) -> Result:
        result = ours(self, x, residual)
        return theirs(self, x, residual) if result is None else result

    def op(self: Any, x: torch.Tensor, residual: torch.Tensor | None) -> str:
        return OPS[residual is not None]

    shadow = ADAPTER.shadowed(op, seam)

    def compared(self: Any, x: torch.Tensor, residual: torch.Tensor | None) -> Result:
        return shadow(GemmaRMSNorm.forward_native, self, x, residual)  # type: ignore[no-any-return]

    SgljitGemmaRMSNorm._ours = compared  # type: ignore[method-assign]  # noqa: SLF001


def put_layer(theirs: Any, ours: Any) -> None:
    """Make vLLM create a layer where it would create its own, but for a layer that another plugin replaced before."""
    name = theirs.__name__
    other = op_registry_oot.get(name)
    if other is None:
        registered = theirs.name
        CustomOp.register_oot(name=name)(ours)
        ours.name = registered  # register_oot renames it, and then custom_ops=["-rms_norm"] would miss it
    elif other is not ours:
        text = f"leaves {name} to {other.__module__}.{other.__qualname__}, which replaced it before"
        ADAPTER.say_once(logging.WARNING, "engine_conflict", text)


class SgljitGemmaRMSNorm(GemmaRMSNorm):
    """vLLM's GemmaRMSNorm on ``gemma_rmsnorm`` and ``gemma_fused_add_rmsnorm``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.enabled():
            self._has_plain, self._has_fused = (name in _used and works_for(name, self.weight) for name in OPS)
        else:
            self.__class__ = GemmaRMSNorm
            text = "leaves layers whose custom op is off to vLLM's native code, which the compiler fuses"
            ADAPTER.say_once(logging.INFO, "engine_native", text)
            ADAPTER.leave(_used, "its custom op is off: vLLM's native code is used, which the compiler fuses")

    def forward_cuda(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Result:
        result = self._ours(x, residual)
        return super().forward_cuda(x, residual) if result is None else result

    def forward_cpu(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Result:
        result = self._ours(x, residual)
        return super().forward_cpu(x, residual) if result is None else result

    def _ours(self, x: torch.Tensor, residual: torch.Tensor | None) -> Result | None:
        """The result of ours; None if vLLM's own code must run. As vLLM's, it leaves its inputs alone."""
        weight = self.weight.data
        if x.dtype != weight.dtype or x.shape[-1] != weight.shape[0] or x.device != weight.device:
            return None
        if residual is None:
            out = torch.empty_like(x, memory_format=torch.contiguous_format)
            works = self._has_plain and ran(OPS[0], as_rows(x), weight, as_rows(out), self.variance_epsilon)
            return out if works else None
        if not self._has_fused or residual.dtype != x.dtype or residual.shape != x.shape:
            return None
        out, total = (one.clone(memory_format=torch.contiguous_format) for one in (x, residual))
        works = ran(OPS[1], as_rows(out), as_rows(total), weight, self.variance_epsilon)
        return (out, total) if works else None
