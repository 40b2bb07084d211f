"""SGLang's norm of q and k by a hook, or SGLang's own code for what sgljit does not support."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sgljit_engines.kernels import DTYPES, Op, try_rows

from .backend import around
from .kernels import left, ran, works

_QKNORM = "fused_inplace_qknorm"
_MODELS = "sglang.srt.models.utils"
_HEAD_DIMS = (64, 128, 256, 512, 1024)  # those that SGLang's own kernel takes


def replace(used: frozenset[str]) -> None:
    """Register the hooks.

    Args:
        used: the ops that may be called.
    """
    if _QKNORM in used:
        around(f"{_MODELS}.fused_inplace_qknorm", _qknorm, _QKNORM)
        around(f"{_MODELS}.can_use_fused_inplace_qknorm", _can_use_qknorm)


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
    if q.dtype not in DTYPES or not q.dtype == k.dtype == q_weight.dtype == k_weight.dtype:
        left(_QKNORM)
    elif _works(head_dim or q.shape[-1], q.dtype, q.device.type) and ran(
        _QKNORM, q, k, q_weight.data, k_weight.data, eps, head_dim=head_dim
    ):
        return
    theirs(q, k, q_weight, k_weight, eps, head_dim=head_dim)


def _can_use_qknorm(theirs: Callable[..., bool], head_dim: int, dtype: torch.dtype) -> bool:
    # SGLang puts this hook wherever its function was imported, also where the norm that follows is its own.
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return (head_dim in _HEAD_DIMS and _works(head_dim, dtype, device)) or theirs(head_dim, dtype)


def _works(head_dim: int, dtype: torch.dtype, device: str) -> bool:
    def trial(kernel: Op) -> None:
        weight = torch.zeros(head_dim, dtype=dtype, device=device)
        try_rows(lambda rows: kernel(*weight.new_zeros(2, rows, 1, head_dim), weight, weight), head_dim, device)

    return dtype in DTYPES and works(_QKNORM, (head_dim, dtype, device), trial)
