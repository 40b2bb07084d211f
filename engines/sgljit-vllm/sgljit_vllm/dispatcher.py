"""sgljit's ops in the place of vLLM's kernels, ``torch.ops._C``, at PyTorch's dispatcher.

Whoever calls such a kernel gets ours: an eager layer, routed experts, a drafter, a compiled graph. vLLM's own kernel
runs for what ours does not take. vLLM's passes see the same graphs.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.operator_schemas import get_signature_for_torch_op
from vllm import envs
from vllm.platforms import current_platform

from sgljit_engines.errors import InexactError
from sgljit_engines.kernels import DTYPES, Op, try_rows

from . import ADAPTER
from .kernels import INVARIANT, as_rows, left, ran, worked, works

ACTIVATIONS = {"silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"}

_KERNELS = "_C"  # vLLM's name for them

# By kernel, the types of its arguments, with "!" where it writes; nothing is returned. Ours are called with these.
_ACTIVATION = ["Tensor!", "Tensor"]
_ARGUMENTS = {
    **dict.fromkeys(ACTIVATIONS, _ACTIVATION),
    "rms_norm": ["Tensor!", "Tensor", "Tensor", "float"],
    "fused_add_rms_norm": ["Tensor!", "Tensor!", "Tensor", "float"],
}

_WHOLE = 16  # both halves of such rows consist of whole 16-byte loads in each dtype: one kernel serves all

_libraries: dict[str, torch.library.Library] = {}  # by kernel; what one registered goes with it
_own: dict[str, Callable[..., None]] = {}  # vLLM's kernels by name, where bits are compared with theirs


def replace_activations(used: frozenset[str]) -> None:
    """Let the kernels of gated activations call ours.

    Args:
        used: the ops that may be called.
    """
    for name in ACTIVATIONS & used:
        _replace(name, name, functools.partial(_activated, name, ADAPTER.exact))


def replace_norms(used: frozenset[str]) -> None:
    """Let the kernels of norms call ours, in vLLM 0.34 and later, which have no IR.

    Args:
        used: the ops that may be called.
    """
    if envs.VLLM_BATCH_INVARIANT:
        ADAPTER.leave(used & {"rmsnorm", "fused_add_rmsnorm"}, INVARIANT)
        return
    if "rmsnorm" in used:
        _replace("rms_norm", "rmsnorm", _normed)
    if "fused_add_rmsnorm" in used:
        _replace("fused_add_rms_norm", "fused_add_rmsnorm", _added_and_normed)


def _replace(kernel: str, op: str, ours: Callable[..., bool]) -> None:
    """Put a function that calls an op before a kernel. It says whether it did the work; if not, the kernel does."""
    device = current_platform.dispatch_key
    if kernel in _libraries or device not in ("CPU", "CUDA"):
        return
    current_platform.import_kernels()
    if reason := _differs(kernel):
        ADAPTER.say_once(logging.WARNING, "engine_conflict", f"leaves {kernel} to {ADAPTER.versions()}: {reason}")
        ADAPTER.leave([op], reason)
        return
    theirs = torch.library.get_kernel(f"{_KERNELS}::{kernel}", device)

    def call(keys: Any, *args: Any) -> None:
        if not ours(*args):
            theirs.call_boxed(keys, *args)

    def seam(kernel: Callable[..., None], *args: Any) -> None:
        if not ours(*args):
            kernel(*args)

    def compared(keys: Any, *args: Any) -> None:
        shadow(functools.partial(theirs.call_boxed, keys), *args)

    def exact(keys: Any, *args: Any) -> None:
        _own[kernel] = functools.partial(theirs.call_boxed, keys)
        (compared if ADAPTER.shadow else call)(keys, *args)

    shadow = ADAPTER.shadowed(op, seam)
    ours_before_theirs = exact if ADAPTER.exact else compared if ADAPTER.shadow else call
    _libraries[kernel] = torch.library.Library(_KERNELS, "IMPL")
    with warnings.catch_warnings():  # PyTorch warns of each kernel that is overridden
        warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
        _libraries[kernel].impl(kernel, ours_before_theirs, device, with_keyset=True, allow_override=True)


def _differs(kernel: str) -> str:
    """Why ours cannot take the arguments of a kernel, with its schema; "" if it can."""
    packet = getattr(getattr(torch.ops, _KERNELS), kernel, None)
    if packet is None:
        return "it has no such kernel"
    signatures: Any = get_signature_for_torch_op(packet, return_schemas=True)
    schemas = signatures[1]
    found = [_type(argument) for argument in schemas[0].arguments]
    if len(schemas) == 1 and found == _ARGUMENTS[kernel] and not schemas[0].returns:
        return ""
    return f"its schema is {'; '.join(map(str, schemas))}, and ours takes ({', '.join(_ARGUMENTS[kernel])})"


def _type(argument: Any) -> str:
    written = argument.alias_info is not None and argument.alias_info.is_write
    return str(argument.type).removeprefix("Optional[").removesuffix("]") + "!" * written


def _activated(name: str, is_exact: bool, out: torch.Tensor, x: torch.Tensor) -> bool:
    dtype = x.dtype
    has_rows = x.numel() > 0 and x.shape[-1] % _WHOLE == 0 and x.is_contiguous() and out.is_contiguous()
    if dtype not in DTYPES or out.dtype is not dtype or not has_rows:
        left(name)
        return False
    kind = (dtype, current_platform.device_type)
    if not (worked(name, kind) or works(name, kind, functools.partial(_try_activation, name, is_exact, x))):
        return False
    return ran(name, x, out, round_first=True) if is_exact else ran(name, x, out)


def _try_activation(name: str, is_exact: bool, x: torch.Tensor, kernel: Op) -> None:
    kernel(x.new_zeros(1, _WHOLE))
    if is_exact:
        from sgljit_activation import bits  # the family is imported when its ops are called

        ours = lambda gate, up: kernel(torch.cat([gate, up], -1), round_first=True)  # noqa: E731
        if found := bits.difference(ours, functools.partial(_by_own, name), x.dtype, x.device):
            raise InexactError(found)


def _by_own(kernel: str, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(gate)
    _own[kernel](out, torch.cat([gate, up], -1))
    return out


def _normed(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> bool:
    if weight is None or not out.is_contiguous():
        left("rmsnorm")
        return False
    return _norm_works("rmsnorm", x, weight) and ran("rmsnorm", as_rows(x), weight, as_rows(out), epsilon)


def _added_and_normed(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> bool:
    name = "fused_add_rmsnorm"
    if weight is None or residual is x:
        left(name)
        return False
    return _norm_works(name, x, weight) and ran(name, x, residual, weight, epsilon)


def _norm_works(name: str, x: torch.Tensor, weight: torch.Tensor) -> bool:
    dtype = x.dtype
    if dtype not in DTYPES or weight.dtype is not dtype or x.numel() == 0:
        left(name)
        return False
    kind = (weight.shape[0], dtype, current_platform.device_type)
    return worked(name, kind) or works(name, kind, functools.partial(_try_norm, name, x, *kind))


def _try_norm(name: str, x: torch.Tensor, size: int, _dtype: torch.dtype, device: str, kernel: Op) -> None:
    ones, num_tensors = x.new_ones(size), 1 if name == "rmsnorm" else 2
    try_rows(lambda rows: kernel(*(x.new_zeros(rows, size) for _ in range(num_tensors)), ones), size, device)
