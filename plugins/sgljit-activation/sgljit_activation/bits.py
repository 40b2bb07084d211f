"""Does an engine's own activation give the same bits? An adapter asks before it promises that."""

from __future__ import annotations

from collections.abc import Callable

import torch

Activation = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_VALUES = 1 << 16  # of a dtype of 16 bits


def difference(ours: Activation, theirs: Activation, dtype: torch.dtype, device: torch.device | str) -> str | None:
    """How the bits of two gated activations differ, in words; None if it is proven that they do not.

    In a dtype of 16 bits the gate has 65536 values, and all are tried. If the activation is rounded before the product,
    that is exact in float32, so it cannot differ; that both round so, a second trial shows.

    Args:
        ours, theirs: functions of gate and up, [64, 1024], which return a new tensor.
        dtype: of gate and up. In float32, of too many values, nothing is proven.
        device: where they are.
    """
    if dtype not in (torch.float16, torch.bfloat16):
        return f"that it gives the bits of the engine's own code cannot be proven in {dtype}"
    gate = torch.arange(_VALUES, dtype=torch.int32, device=device).to(torch.int16).view(dtype).reshape(-1, 1024)
    ups = torch.linspace(-9, 9, _VALUES, device=device).exp().reshape(1024, -1).T.contiguous()
    for up in (torch.ones_like(gate), ups.to(dtype)):
        first, second = ours(gate, up), theirs(gate, up)
        same = (first.view(torch.int16) == second.view(torch.int16)) | (first.isnan() & second.isnan())
        if not same.all():
            return f"{int((~same).sum())} of {_VALUES} gates give other bits than the engine's own code"
    return None
