"""Does a kernel's result agree with the reference's?"""

from __future__ import annotations

from typing import Any

import torch

# A few units in the last place of a result that was rounded once; of eight bits one unit, which is up to an eighth.
TOLERANCES = {
    torch.float8_e4m3fn: 0.13,
    torch.float8_e5m2: 0.26,
    torch.bfloat16: 3e-2,
    torch.float16: 4e-3,
    torch.float32: 1e-4,
    torch.float64: 1e-9,
}


def difference(got: Any, wanted: Any) -> str | None:
    """The difference between a result and the reference's, in words; None where they agree.

    Floating tensors are compared in float64, with a tolerance of the dtype of ``got``, relative to each element and to
    the mean magnitude of all, as sums of many terms cancel. Everything else must be equal.
    """
    if not (isinstance(got, torch.Tensor) and isinstance(wanted, torch.Tensor)):
        is_same = type(got) is type(wanted) and (got == wanted or (got != got and wanted != wanted))
        return None if is_same else f"is {got!r}, and the reference gives {wanted!r}"
    if got.shape != wanted.shape:
        return f"has the shape {list(got.shape)}, and the reference's has {list(wanted.shape)}"
    dtype, (got, wanted) = got.dtype, (one.detach().cpu() for one in (got, wanted))
    if dtype in TOLERANCES:
        got, wanted = got.double(), wanted.double()
        finite = wanted[wanted.isfinite()].abs()
        mean = float(finite.mean()) if finite.numel() else 0.0
        rtol, least = TOLERANCES[dtype], torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
        differs = ~torch.isclose(got, wanted, rtol=rtol, atol=rtol * mean + least, equal_nan=True)
    else:
        differs = got != wanted
    if not differs.any():
        return None
    index = tuple(differs.nonzero()[0].tolist())
    return (
        f"differs at {list(index)}: {got[index].item()}, and the reference gives {wanted[index].item()}; "
        f"{int(differs.sum())} of {got.numel()} elements differ"
    )


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
    return (
        f"has {over} of {got.numel()} elements that are more than {roundings / 2:g} units in the last place from the "
        f"reference in float64, such as {got[at].item()} for {wanted[at].item()}"
    )


def same_bits(first: Any, second: Any) -> bool:
    """Whether two results are the same, NaN included."""
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same_bits, first, second))
    if not isinstance(first, torch.Tensor):
        return bool(first == second)
    raw = (one.contiguous().flatten().view(torch.uint8) for one in (first, second))
    return first.shape == second.shape and (first.numel() == 0 or torch.equal(*raw))
