"""Does a kernel's result agree with another computation of the same? Every op is held to this bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
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
_BIAS = 0.2  # units in the last place, off in the mean: 0 if rounded to nearest, a third if cut off
_ENOUGH = 1024  # elements, for a mean that is no accident


def difference(got: Any, wanted: Any, rounded: torch.dtype | None = None) -> str | None:
    """The difference between a result and the reference's, in words; None where they agree.

    Floating tensors are compared in float64, with the tolerance of their dtype, relative to each element and to the
    mean magnitude of all, as sums of many terms cancel. Where values of the dtype ``rounded`` were between, it is a
    unit of that one. In dtypes of 16 bits and less the elements of a large tensor must also be right in the mean, to a
    fifth of a unit in the last place. Everything else must be equal.
    """
    if not (isinstance(got, torch.Tensor) and isinstance(wanted, torch.Tensor)):
        is_same = type(got) is type(wanted) and (got == wanted or (got != got and wanted != wanted))
        return None if is_same else f"is {got!r}, and the reference gives {wanted!r}"
    if got.shape != wanted.shape:
        return f"has the shape {list(got.shape)}, and the reference's has {list(wanted.shape)}"
    got, wanted = (one.detach().cpu() for one in (got, wanted))
    differs = _shares(got, wanted, rounded) > 1
    if not differs.any():
        units = _bias(got, wanted)
        side = f"{abs(units):.2f} units in the last place {'above' if units > 0 else 'below'} the reference's"
        return f"is rounded to one side: in the mean its elements are {side}" if abs(units) > _BIAS else None
    index = tuple(differs.nonzero()[0].tolist())
    numbers = [one.double() if one.dtype in TOLERANCES else one for one in (got, wanted)]
    return (
        f"differs at {list(index)}: {numbers[0][index].item()}, and the reference gives {numbers[1][index].item()}; "
        f"{int(differs.sum())} of {got.numel()} elements differ"
    )


def share(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest error of a result, as a share of what ``difference`` allows: above 1 where they do not agree."""
    if got.shape != wanted.shape:
        return math.inf
    if got.dtype == wanted.dtype and same_bits(got, wanted):  # the most common case, and far cheaper
        return 0.0
    largest = float(_shares(got, wanted).max()) if got.numel() else 0.0
    return max(largest, abs(_bias(got, wanted)) / _BIAS)


def same_bits(first: Any, second: Any) -> bool:
    """Whether two results are the same, NaN included."""
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same_bits, first, second))
    if not isinstance(first, torch.Tensor):
        return bool(first == second)
    raw = (one.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8) for one in (first, second))
    return first.shape == second.shape and (first.numel() == 0 or torch.equal(*raw))


def _shares(got: torch.Tensor, wanted: torch.Tensor, rounded: torch.dtype | None = None) -> torch.Tensor:
    """The error of each element, as a share of what is allowed; infinite where one of two is no number."""
    dtype = got.dtype
    if dtype not in TOLERANCES:
        return torch.where(got != wanted, math.inf, 0.0)
    got, wanted = got.double(), wanted.double()
    finite = wanted[wanted.isfinite()].abs()
    mean = float(finite.mean()) if finite.numel() else 0.0
    least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    limit = TOLERANCES[dtype] if rounded is None else torch.finfo(rounded).eps
    found = (got - wanted).abs() / (limit * (wanted.abs() + mean) + least)
    same = (got == wanted.to(dtype).double()) | (got.isnan() & wanted.isnan())
    return found.nan_to_num(nan=math.inf, posinf=math.inf).masked_fill_(same, 0.0)


def _bias(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The mean distance of the elements from what is wanted, away from zero, in units in the last place."""
    if got.dtype not in TOLERANCES or got.dtype.itemsize > 2 or got.numel() < _ENOUGH:
        return 0.0
    info = torch.finfo(got.dtype)
    got, wanted = got.double(), wanted.double()
    units = (got / wanted - 1) / info.eps
    counted = units[(wanted.abs() >= info.smallest_normal) & units.isfinite()]
    return float(counted.clamp(-1, 1).mean()) if counted.numel() >= _ENOUGH else 0.0


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in arguments or results, those in lists and dictionaries too."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(one)


def map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """Arguments or results with another value in the place of each tensor, those in lists and dictionaries too."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: map_tensors(function, one) for key, one in value.items()}
    return type(value)(map_tensors(function, one) for one in value) if type(value) in (list, tuple) else value


def span(tensor: torch.Tensor) -> int:
    """The bytes from a tensor's first element to the end of its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize if tensor.numel() else 0
