"""vLLM's norms and activations as layers that call sgljit, or vLLM's own code for what sgljit does not support.

The ops take the place of vLLM's kernels, where vLLM would call these. Where it takes its native code instead, as for a
model that inductor compiles, that stays: the compiler and vLLM's passes fuse it, and see through no op.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from vllm import envs
from vllm.model_executor.custom_op import CustomOp, op_registry_oot
from vllm.model_executor.layers.activation import GeluAndMul, SiluAndMul
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
from vllm.platforms import current_platform

from sgljit_activation import gelu_and_mul, gelu_tanh_and_mul, silu_and_mul
from sgljit_norm import fused_add_rmsnorm, gemma_fused_add_rmsnorm, gemma_rmsnorm, rmsnorm

from . import ADAPTER

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_DEVICES = ("cpu", "cuda")
_WHOLE = 16  # both halves of such rows consist of whole 16-byte loads in each dtype: one kernel serves all

_used: frozenset[str] = frozenset()
_tried: dict[tuple[object, ...], bool] = {}

Result = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


def replace(used: frozenset[str]) -> None:
    """Make vLLM create these layers where it would create its own.

    Args:
        used: the ops that may be called.
    """
    global _used  # noqa: PLW0603 - one vLLM in a process
    _used = used
    for layer, ours, ops in (
        (RMSNorm, SgljitRMSNorm, {"rmsnorm", "fused_add_rmsnorm"}),
        (GemmaRMSNorm, SgljitGemmaRMSNorm, {"gemma_rmsnorm", "gemma_fused_add_rmsnorm"}),
        (SiluAndMul, SgljitSiluAndMul, {"silu_and_mul"}),
        (GeluAndMul, SgljitGeluAndMul, {"gelu_and_mul", "gelu_tanh_and_mul"}),
    ):
        name = layer.__name__
        other = op_registry_oot.get(name)
        if other is ours or not ops & used:
            continue
        if other is not None:
            text = f"leaves {name} to {other.__module__}.{other.__qualname__}, which replaced it before"
            ADAPTER.say_once(logging.WARNING, "engine_conflict", text)
            continue
        registered = layer.name
        CustomOp.register_oot(name=name)(ours)
        ours.name = registered  # register_oot renames it, and then custom_ops=["-rms_norm"] would miss it


class _Norm:
    """The base of both norms. A layer decides when it is made, so that a call has next to nothing to decide.

    Attributes of a class:
        _plain, _fused: the op without and with a residual.
        _in_place: whether vLLM's own layer may overwrite its inputs when there is a residual.
    """

    _plain: Callable[..., None]
    _fused: Callable[..., None]
    _in_place: bool
    weight: torch.Tensor
    variance_epsilon: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        weight = self.weight
        able = _is_wanted(self) and not envs.VLLM_BATCH_INVARIANT
        able = able and getattr(self, "variance_size_override", None) is None
        able = able and getattr(self, "has_weight", True) and weight.dtype in _DTYPES
        kind = current_platform.device_type if weight.device.type == "meta" else weight.device.type
        able = able and kind in _DEVICES
        self._has_plain = able and _norm_works(self._plain, 0, weight, kind)
        self._has_fused = able and _norm_works(self._fused, 1, weight, kind)

    def forward_cuda(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Result:
        if self._takes(x, residual):
            return self._ours(x, residual)
        return super().forward_cuda(x, residual)  # type: ignore[misc, no-any-return]

    def forward_cpu(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Result:
        if self._takes(x, residual):
            return self._ours(x, residual)
        return super().forward_cpu(x, residual)  # type: ignore[misc, no-any-return]

    def _takes(self, x: torch.Tensor, residual: torch.Tensor | None) -> bool:
        weight = self.weight
        if x.dtype != weight.dtype or x.shape[-1] != weight.shape[0] or x.device != weight.device:
            return False
        if residual is None:
            return self._has_plain
        same = residual.dtype == x.dtype and residual.shape == x.shape and residual is not x
        return self._has_fused and same

    def _ours(self, x: torch.Tensor, residual: torch.Tensor | None) -> Result:
        weight = self.weight.data
        rows = x.reshape(-1, weight.shape[0])
        if residual is None:
            out = torch.empty_like(rows, memory_format=torch.contiguous_format)
            self._plain(rows, weight, out=out, eps=self.variance_epsilon)
            return out.view(x.shape)
        residual_rows = residual.reshape(-1, weight.shape[0])
        if not self._in_place:
            rows, residual_rows = rows.clone(), residual_rows.clone()
        self._fused(rows, residual_rows, weight, eps=self.variance_epsilon)
        return rows.view(x.shape), residual_rows.view(x.shape)


class SgljitRMSNorm(_Norm, RMSNorm):
    """vLLM's RMSNorm on ``rmsnorm`` and ``fused_add_rmsnorm``."""

    _plain = staticmethod(rmsnorm)
    _fused = staticmethod(fused_add_rmsnorm)
    _in_place = True


class SgljitGemmaRMSNorm(_Norm, GemmaRMSNorm):
    """vLLM's GemmaRMSNorm on ``gemma_rmsnorm`` and ``gemma_fused_add_rmsnorm``."""

    _plain = staticmethod(gemma_rmsnorm)
    _fused = staticmethod(gemma_fused_add_rmsnorm)
    _in_place = False


class _Activation:
    """The base of both activations. A layer has no weight: it is made where and in the dtype that vLLM makes weights.

    Attributes of a class:
        _ops: the op for each ``approximate`` of the layer; "" where it has no such attribute.
    """

    _ops: ClassVar[Mapping[str, Callable[..., torch.Tensor]]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        kind = torch.get_default_device().type
        self._device = current_platform.device_type if kind == "meta" else kind
        self._dtype = torch.get_default_dtype()
        self._op = self._ops[getattr(self, "approximate", "")]
        able = _is_wanted(self) and self._dtype in _DTYPES and self._device in _DEVICES
        rows = functools.partial(torch.zeros, 1, _WHOLE, dtype=self._dtype, device=self._device)
        self._has_op = able and _works(self._op, (self._dtype, self._device), lambda: self._op(rows()))

    def forward_cuda(self, x: torch.Tensor) -> torch.Tensor:
        if self._takes(x):
            return self._op(x.contiguous())
        return super().forward_cuda(x)  # type: ignore[misc, no-any-return]

    def forward_cpu(self, x: torch.Tensor) -> torch.Tensor:
        if self._takes(x):
            return self._op(x.contiguous())
        return super().forward_cpu(x)  # type: ignore[misc, no-any-return]

    def _takes(self, x: torch.Tensor) -> bool:
        fits = x.dtype == self._dtype and x.device.type == self._device and x.shape[-1] % _WHOLE == 0
        return self._has_op and fits


class SgljitSiluAndMul(_Activation, SiluAndMul):
    """vLLM's SiluAndMul on ``silu_and_mul``."""

    _ops = {"": silu_and_mul}  # noqa: RUF012 - declared above


class SgljitGeluAndMul(_Activation, GeluAndMul):
    """vLLM's GeluAndMul on ``gelu_and_mul`` and ``gelu_tanh_and_mul``."""

    _ops = {"none": gelu_and_mul, "tanh": gelu_tanh_and_mul}  # noqa: RUF012


def _is_wanted(layer: Any) -> bool:
    """Whether vLLM calls the kernel of a layer, as ``custom_ops`` decide, or its native code, which one line says."""
    if layer.enabled():
        return True
    text = "leaves layers whose custom op is off to vLLM's native code, which the compiler fuses"
    ADAPTER.say_once(logging.INFO, "engine_native", text)
    return False


def _norm_works(op: Callable[..., None], num_residuals: int, weight: torch.Tensor, device: str) -> bool:
    def call() -> None:
        rows = [torch.zeros(1, weight.shape[0], dtype=weight.dtype, device=device) for _ in range(1 + num_residuals)]
        op(*rows, torch.ones_like(rows[0][0]))

    return _works(op, (weight.shape[0], weight.dtype, device), call)


def _works(op: Callable[..., object], kind: tuple[object, ...], call: Callable[[], object]) -> bool:
    """Whether an op may be used, and one call of it succeeded. The call builds the kernel before vLLM serves."""
    key = (op.__name__, *kind)
    if op.__name__ not in _used:
        return False
    return ADAPTER.attempt_once(op.__name__, call, _tried, key)
