"""sgljit's norms as a provider of vLLM's IR, which 0.32 and 0.33 have: in models that inductor compiles and others.

vLLM's passes match its IR, and what is left is lowered to the first provider in a list that takes the call. So what
vLLM fuses with a norm stays fused. vLLM has no public way to put a provider before its own by default: here the
platform's method is wrapped, whose list comes behind what ``--ir-op-priority`` says.
"""

# Without annotations from __future__: vLLM reads the schema of a provider from its annotations.
import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from vllm import envs, ir
from vllm.config import CompilationMode, get_current_vllm_config
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.platforms import current_platform

from . import ADAPTER
from .kernels import DEVICES, INVARIANT, as_rows, ran, worked
from .layers import put_layer
from .norms import kind_of, works_for

PROVIDER = "sgljit"
OPS = {"rms_norm": "rmsnorm", "fused_add_rms_norm": "fused_add_rmsnorm"}

_used: set[str] = set()


def register(used: frozenset[str]) -> None:
    """Register the provider, put it first, and let each RMSNorm find out whether ours work for it.

    Args:
        used: the ops that may be called.
    """
    names = [name for name, op in OPS.items() if op in used]
    if envs.VLLM_BATCH_INVARIANT:
        ADAPTER.leave((OPS[name] for name in names), INVARIANT)
        return
    if _used or not names or current_platform.device_type not in DEVICES:
        return
    _used.update(OPS[name] for name in names)
    if "rms_norm" in names:
        ir.ops.rms_norm.register_impl(PROVIDER, supports_args=_takes)(_compared("rms_norm", _rms_norm))
    if "fused_add_rms_norm" in names:
        ours = _compared("fused_add_rms_norm", _fused_add_rms_norm)
        ir.ops.fused_add_rms_norm.register_impl(PROVIDER, supports_args=_takes_sum, inplace=True)(ours)
    theirs = current_platform.get_default_ir_op_priority

    def get_default_ir_op_priority(vllm_config: Any) -> Any:
        priority = theirs(vllm_config)
        for name in names:
            setattr(priority, name, [PROVIDER, *getattr(priority, name)])
        return priority

    current_platform.get_default_ir_op_priority = get_default_ir_op_priority
    put_layer(RMSNorm, _Asking)


def _compared(name: str, ours: Callable[..., Any]) -> Callable[..., Any]:
    """A provider's function, or with ``SGLJIT_SHADOW`` one that compares some calls with vLLM's native code."""
    if not ADAPTER.shadow:
        return ours
    shadow = ADAPTER.shadowed(OPS[name], lambda _theirs, *args, **kwargs: ours(*args, **kwargs))
    theirs = getattr(ir.ops, name).impls["native"].impl_fn

    @functools.wraps(ours)  # with the annotations
    def compared(*args: Any, **kwargs: Any) -> Any:
        return shadow(theirs, *args, **kwargs)

    return compared


class _Asking(RMSNorm):
    """vLLM's RMSNorm, which asks when it is made whether ours work for its rows. Then it is vLLM's own.

    The lowering could ask later only, when vLLM has looked for a compiled graph that may call ours already.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.__class__ = RMSNorm
        config = get_current_vllm_config()
        compilation = config.compilation_config
        if compilation.mode != CompilationMode.NONE and not compilation.ir_enable_torch_wrap:
            text = "leaves norms to vLLM's native code, which the compiler sees through and fuses"
            ADAPTER.say_once(logging.INFO, "engine_native", text)
            ADAPTER.leave(_used, "vLLM's native code is used, which the compiler sees through and fuses")
        elif self.has_weight and self.variance_size_override is None and _is_of_heads(self.weight, config):
            use = ADAPTER.use("rmsnorm", (*kind_of(self.weight), "of heads"))
            use.why = "the compiler fuses it with the rotation behind it"
        elif self.has_weight and self.variance_size_override is None:
            for name, op in OPS.items():
                if op in _used and getattr(config.kernel_config.ir_op_priority, name)[0] == PROVIDER:
                    works_for(op, self.weight)


def _is_of_heads(weight: torch.Tensor, config: Any) -> bool:
    """Whether a norm is that of heads in a model that is compiled, which ours leave to the compiler."""
    if config.compilation_config.mode == CompilationMode.NONE or config.model_config is None:
        return False
    return bool(weight.shape[0] == config.model_config.get_head_size())


def _takes(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    return weight is not None and variance_size is None and _fits("rmsnorm", x, weight)


def _takes_sum(
    x: torch.Tensor,
    x_residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> bool:
    if weight is None or variance_size is not None or x_residual is x:
        return False
    is_like = x_residual.dtype == x.dtype and x_residual.shape == x.shape
    return is_like and _fits("fused_add_rmsnorm", x, weight)


def _fits(name: str, x: torch.Tensor, weight: torch.Tensor) -> bool:
    if torch.compiler.is_compiling():  # vLLM's IR is off, and the compiler sees through its native code
        return False
    if x.dtype != weight.dtype or x.device != weight.device or x.shape[-1] != weight.shape[0]:
        return False
    if not worked(name, kind_of(weight)):
        return False
    # In a graph a tensor is a fake one. Norms of heads are fused there with the rotation behind them; ours would also
    # need a copy of them.
    return type(x) is torch.Tensor or (x.dim() == 2 and x.is_contiguous())


def _rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> torch.Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if ran("rmsnorm", as_rows(x), weight, as_rows(out), epsilon):
        return out
    return ir.ops.rms_norm.impls["native"].impl_fn(x, weight, epsilon, variance_size)  # type: ignore[no-any-return]


def _fused_add_rms_norm(
    x: torch.Tensor,
    x_residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, total = as_rows(x), as_rows(x_residual)
    if ran("fused_add_rmsnorm", rows, total, weight, epsilon):
        if rows is x:  # a view would ask for the size of x later, and then vLLM makes a copy of it to write to
            return x, x_residual
        return rows.view(x.shape), total.view(x.shape)
    theirs = ir.ops.fused_add_rms_norm.impls["native"].impl_fn
    return theirs(x, x_residual, weight, epsilon, variance_size)  # type: ignore[no-any-return]
