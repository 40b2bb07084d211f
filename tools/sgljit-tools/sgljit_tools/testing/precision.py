"""Is a result rounded more often than its op says?"""

from __future__ import annotations

from typing import Any

import torch


def is_rounded_more_often(got: Any, wanted: Any, roundings: int) -> str | None:
    """How a result of 16 or 8 bits differs from one that is rounded ``roundings`` times, in words; None if it does not.

    The budget of an element is half a unit in the last place of its dtype for each rounding, and what float32 loses: in
    a sum that cancels that is many units, so one element of 20 may be over.

    Args:
        wanted: the reference's result in float64; any other dtype is not looked at.
    """
    if not (isinstance(got, torch.Tensor) and isinstance(wanted, torch.Tensor)) or got.shape != wanted.shape:
        return None
    if wanted.dtype != torch.float64 or not got.is_floating_point() or got.itemsize > 2:
        return None
    limits = torch.finfo(got.dtype)
    got, wanted = (one.detach().cpu().double() for one in (got, wanted))
    usable = got.isfinite() & wanted.isfinite() & (wanted.abs() <= limits.max)
    if not usable.any():
        return None
    got, wanted = got[usable], wanted[usable]
    unit = torch.exp2(torch.floor(torch.log2(wanted.abs().clamp_min(limits.smallest_normal)))) * limits.eps
    units = ((got - wanted).abs() - float(wanted.abs().mean()) * 2**-22) / unit
    over = int((units > roundings / 2 + 1 / 16).sum())
    if over <= 2 + got.numel() // 20:
        return None
    at = int(units.argmax())
    told = f"has {over} of {got.numel()} elements that are more than {roundings / 2:g} units in the last place"
    return f"{told} from the reference in float64, such as {got[at].item()} for {wanted[at].item()}"
