"""Functions of SGLang around which ours are put: the norm of q and k, and the transfers of HiCache.

A hook gets SGLang's own function, and calls it for whatever sgljit does not support. The staged write-back and the
kernels of whole pages have no hook: they stay SGLang's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

import sgljit_hicache
from sgljit_norm import fused_inplace_qknorm

from . import ADAPTER

_QKNORM = "fused_inplace_qknorm"
_MODELS = "sglang.srt.models.utils"
_HICACHE = "sglang.kernels.ops.kvcache.hicache"
_TRANSFERS: dict[str, Callable[..., None]] = {
    "transfer_hicache_one_layer": sgljit_hicache.transfer_hicache_one_layer,
    "transfer_hicache_one_layer_mla": sgljit_hicache.transfer_hicache_one_layer_mla,
    "transfer_hicache_all_layer": sgljit_hicache.transfer_hicache_all_layer,
    "transfer_hicache_all_layer_mla": sgljit_hicache.transfer_hicache_all_layer_mla,
}

# Only backups move all layers at once. They run beside the forward pass, and nobody waits for them: each takes as many
# multiprocessors as SGLang's own kernel does, the one that moves rows through registers.
_BACKUPS = {"transfer_hicache_all_layer", "transfer_hicache_all_layer_mla"}
_BACKUP_QUOTA = 2

_HEAD_DIMS = (64, 128, 256, 512, 1024)  # those that SGLang's own kernel takes

_registered: set[str] = set()


def replace(used: frozenset[str]) -> None:
    """Register the hooks; SGLang applies them when all plugins have run.

    Args:
        used: the ops that may be called.
    """
    if _QKNORM in used:
        _around(f"{_MODELS}.fused_inplace_qknorm", _qknorm)
        _around(f"{_MODELS}.can_use_fused_inplace_qknorm", _can_use_qknorm)
    transfers = _TRANSFERS.keys() & used
    for name in transfers:
        _around(f"{_HICACHE}.{name}", functools.partial(_transfer, name))
    if transfers == _TRANSFERS.keys():  # else SGLang must build its own for those that are switched off
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
    # SGLang puts this hook wherever its function was imported, also where the norm that follows is its own.
    return (head_dim in _HEAD_DIMS and _qknorm_works(head_dim, dtype, _device())) or theirs(head_dim, dtype)


_tried: dict[tuple[int, torch.dtype, str], bool] = {}


def _qknorm_works(head_dim: int, dtype: torch.dtype, device: str) -> bool:
    """Whether heads of this kind are ours; the first question builds their kernel."""
    key = (head_dim, dtype, device)
    if key not in _tried:
        if torch.compiler.is_compiling() or dtype not in (torch.float16, torch.bfloat16, torch.float32):
            return False  # nothing is built inside of a graph
        rows = torch.zeros(3, 1, head_dim, dtype=dtype, device=device)
        call = functools.partial(fused_inplace_qknorm, rows[:1], rows[1:2], rows[2, 0], rows[2, 0])
        return ADAPTER.attempt_once(_QKNORM, call, _tried, key)
    return _tried[key]


def _transfer(name: str, theirs: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    quota = {"block_quota": _BACKUP_QUOTA} if name in _BACKUPS and kwargs.get("block_quota") is None else {}
    if not ADAPTER.attempt(name, lambda: _TRANSFERS[name](*args, **{**kwargs, **quota})):
        theirs(*args, **kwargs)


def _can_use_hicache(theirs: Callable[..., bool], **kwargs: Any) -> bool:
    if sgljit_hicache.can_use_hicache_jit_kernel(**kwargs) and all(_transfers_work(_device())):
        return True
    return theirs(**kwargs)


@functools.cache
def _transfers_work(device: str) -> tuple[bool, ...]:
    """Whether each transfer moves a row: SGLang must not count on ours for rows that its own kernels do not take."""
    k, v, k_source, v_source = (torch.zeros(1, 16, dtype=torch.uint8, device=device) for _ in range(4))
    tables = [torch.tensor([one.data_ptr()], device=device) for one in (k, v, k_source, v_source)]
    row = torch.zeros(1, dtype=torch.int64, device=device)
    calls = {
        "transfer_hicache_one_layer": (k, v, row, k_source, v_source, row),
        "transfer_hicache_one_layer_mla": (k, row, k_source, row),
        "transfer_hicache_all_layer": (*tables[:2], row, *tables[2:], row),
        "transfer_hicache_all_layer_mla": (tables[0], row, tables[2], row),
    }
    strides = {
        "transfer_hicache_all_layer": {"kv_cache_src_stride_bytes": 16, "kv_cache_dst_stride_bytes": 16},
        "transfer_hicache_all_layer_mla": {"cache_src_stride_bytes": 16, "cache_dst_stride_bytes": 16},
    }
    return tuple(
        ADAPTER.attempt(name, functools.partial(_TRANSFERS[name], *arguments, **strides.get(name, {})))
        for name, arguments in calls.items()
    )


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
