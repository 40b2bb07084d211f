"""Functions of SGLang around which ours are put: the norm of q and k, and the transfers of HiCache.

A hook gets SGLang's own function, and calls it for whatever sgljit does not support. The staged write-back and the
kernels of whole pages have no hook: they stay SGLang's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import sgljit_hicache
import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sgljit_norm import fused_inplace_qknorm

from . import ADAPTER

_QKNORM = "fused_inplace_qknorm"
_MODELS = "sglang.srt.models.utils"
_HICACHE = "sglang.kernels.ops.kvcache.hicache"
_TRANSFERS = {
    "transfer_hicache_one_layer": sgljit_hicache.transfer_hicache_one_layer,
    "transfer_hicache_one_layer_mla": sgljit_hicache.transfer_hicache_one_layer_mla,
    "transfer_hicache_all_layer": sgljit_hicache.transfer_hicache_all_layer,
    "transfer_hicache_all_layer_mla": sgljit_hicache.transfer_hicache_all_layer_mla,
}

_registered: set[str] = set()


def replace(used: frozenset[str]) -> None:
    """Register the hooks; SGLang applies them when all plugins have run.

    Args:
        used: the ops that may be called.
    """
    if _QKNORM in used:
        _around(f"{_MODELS}.fused_inplace_qknorm", _qknorm)
        _around(f"{_MODELS}.can_use_fused_inplace_qknorm", _can_use_qknorm)
    transfers = {name: op for name, op in _TRANSFERS.items() if name in used}
    for name, op in transfers.items():
        _around(f"{_HICACHE}.{name}", functools.partial(_transfer, name, op))
    if len(transfers) == len(_TRANSFERS):  # else SGLang must build its own for those that are switched off
        _around(f"{_HICACHE}.can_use_hicache_jit_kernel", _can_use_hicache)


def _around(target: str, hook: Callable[..., Any]) -> None:
    if target not in _registered:
        _registered.add(target)
        HookRegistry.register(target, hook, HookType.AROUND)


def _qknorm(
    theirs: Callable[..., None],
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    head_dim: int = 0,
) -> None:
    fits = q.dtype == k.dtype == q_weight.dtype == k_weight.dtype
    if not fits or not _qknorm_works(head_dim or q.shape[-1], q.dtype, q.device.type):
        return theirs(q, k, q_weight, k_weight, eps, head_dim=head_dim)
    return fused_inplace_qknorm(q, k, q_weight.data, k_weight.data, eps, head_dim=head_dim)


def _can_use_qknorm(theirs: Callable[..., bool], head_dim: int, dtype: torch.dtype) -> bool:
    return _qknorm_works(head_dim, dtype, "cuda") or theirs(head_dim, dtype)


_tried: dict[tuple[int, torch.dtype, str], bool] = {}


def _qknorm_works(head_dim: int, dtype: torch.dtype, device: str) -> bool:
    """Whether heads of this kind are ours; the first question builds their kernel."""
    key = (head_dim, dtype, device)
    if key not in _tried:
        if torch.compiler.is_compiling() or dtype not in (torch.float16, torch.bfloat16, torch.float32):
            return False  # nothing is built inside of a graph
        if device == "cuda" and not torch.cuda.is_available():
            return False
        rows = torch.zeros(3, 1, head_dim, dtype=dtype, device=device)
        call = functools.partial(fused_inplace_qknorm, rows[:1], rows[1:2], rows[2, 0], rows[2, 0])
        _tried[key] = ADAPTER.attempt(_QKNORM, call)
    return _tried[key]


def _transfer(name: str, ours: Callable[..., None], theirs: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    if not ADAPTER.attempt(name, lambda: ours(*args, **kwargs)):
        theirs(*args, **kwargs)


def _can_use_hicache(theirs: Callable[..., bool], **kwargs: Any) -> bool:
    return sgljit_hicache.can_use_hicache_jit_kernel(**kwargs) or theirs(**kwargs)
