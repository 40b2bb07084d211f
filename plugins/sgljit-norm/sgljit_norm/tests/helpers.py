"""What the tests of both devices share: tensors with guard zones, errors against float64."""

from __future__ import annotations

import torch

from sgljit_core import ops
from sgljit_norm import reference

_GUARD = 7.0
_GUARD_ROWS = 2
_GUARD_COLUMNS = 8

TOLERANCE = 1e-6  # float32, norm of the difference over the norm


class Guarded:
    """A [rows, columns] tensor of NaN inside a larger one whose margins must not change."""

    def __init__(
        self, rows: int, columns: int, dtype: torch.dtype, device: torch.device | str, offset: int = _GUARD_COLUMNS
    ) -> None:
        height, width = rows + 2 * _GUARD_ROWS, columns + 2 * _GUARD_COLUMNS
        self._buffer = torch.full((height, width), _GUARD, dtype=dtype, device=device)
        self._inside = slice(_GUARD_ROWS, _GUARD_ROWS + rows), slice(offset, offset + columns)
        self.tensor = self._buffer[self._inside]
        self.tensor.fill_(float("nan"))

    def assert_margins_untouched(self) -> None:
        margins = self._buffer.clone()
        margins[self._inside] = _GUARD
        assert torch.equal(margins, torch.full_like(margins, _GUARD))


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm; infinite where an element was never written."""
    if got.isnan().any():
        return float("inf")
    return float((got.double() - expected).norm() / expected.norm())


def assert_accurate(got: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> None:
    """float32 to 1e-6; a half type no worse than PyTorch's own kernel in that type."""
    expected = torch.empty_like(x, dtype=torch.float64)
    reference.rmsnorm(x, weight, expected, eps)
    if expected.numel() == 0:
        return
    limit = TOLERANCE
    if x.dtype != torch.float32:
        pytorch = torch.nn.functional.rms_norm(x, weight.shape, weight, eps)
        limit = relative_error(pytorch, expected) * 1.001  # float32's order of summation may flip a rare rounding
    assert relative_error(got, expected) <= limit


def check(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> None:
    """Out of place with guard zones around the output, then in place on a copy.

    The copy's rows may be aligned where the original's are not, and are then summed in another order.
    """
    rmsnorm = ops["norm"].rmsnorm
    before = x.clone()
    num_tokens, hidden_size = x.shape
    out = Guarded(num_tokens, hidden_size, x.dtype, x.device)
    rmsnorm(x, weight, out.tensor, eps)
    out.assert_margins_untouched()
    assert torch.equal(x, before)
    assert_accurate(out.tensor, x, weight, eps)

    in_place = Guarded(num_tokens, hidden_size, x.dtype, x.device)
    in_place.tensor.copy_(x)
    rmsnorm(in_place.tensor, weight, eps=eps)
    in_place.assert_margins_untouched()
    assert_accurate(in_place.tensor, before, weight, eps)
