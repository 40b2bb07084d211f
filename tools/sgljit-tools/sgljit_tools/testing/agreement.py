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


def same_bits(first: Any, second: Any) -> bool:
    """Whether two results are the same, NaN included."""
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same_bits, first, second))
    if not isinstance(first, torch.Tensor):
        return bool(first == second)
    raw = (one.contiguous().flatten().view(torch.uint8) for one in (first, second))
    return first.shape == second.shape and (first.numel() == 0 or torch.equal(*raw))
