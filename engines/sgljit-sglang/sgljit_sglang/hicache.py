"""The transfers of SGLang's HiCache by hooks, or SGLang's own code for what sgljit does not support.

The staged write-back and the kernels of whole pages have no hook: they stay SGLang's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .backend import around
from .kernels import ran

_HICACHE = "sglang.kernels.ops.kvcache.hicache"

# Only backups move all layers at once. They run beside the forward pass, and nobody waits for them: each takes as many
# multiprocessors as SGLang's own kernel does, the one that moves rows through registers.
_BACKUPS = {"transfer_hicache_all_layer", "transfer_hicache_all_layer_mla"}
_BACKUP_QUOTA = 2
_TRANSFERS = {"transfer_hicache_one_layer", "transfer_hicache_one_layer_mla", *_BACKUPS}


def replace(used: frozenset[str]) -> None:
    """Register the hooks.

    Args:
        used: the ops that may be called.
    """
    for name in _TRANSFERS & used:
        around(f"{_HICACHE}.{name}", functools.partial(_transfer, name))
    if used >= _TRANSFERS:  # else SGLang must build its own for those that are switched off
        around(f"{_HICACHE}.can_use_hicache_jit_kernel", _can_use)


def _transfer(name: str, theirs: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    quota = {"block_quota": _BACKUP_QUOTA} if name in _BACKUPS and kwargs.get("block_quota") is None else {}
    if not ran(name, *args, **{**kwargs, **quota}):
        theirs(*args, **kwargs)


def _can_use(theirs: Callable[..., bool], **kwargs: Any) -> bool:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if all(_transfers_work(device)):
        from sgljit_hicache import can_use_hicache_jit_kernel

        if can_use_hicache_jit_kernel(**kwargs):
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
    return tuple(ran(name, *arguments, **strides.get(name, {})) for name, arguments in calls.items())
