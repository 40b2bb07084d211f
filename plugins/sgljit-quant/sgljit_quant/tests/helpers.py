"""What the tests of both devices share: outputs with guard zones, comparison with the reference byte by byte."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sgljit_core import ops
from sgljit_quant import reference

FP8 = torch.float8_e4m3fn
DTYPES = [torch.float32, torch.float16, torch.bfloat16]

_GUARD = 0x55
_POISON = 0x2A
_MARGIN = 16

family = ops["quant"]


class Guarded:
    """A tensor of poison inside a larger one whose margins must not change.

    Args:
        gap: elements between rows, which then are the last dimension.
        offset: elements before the first one; a multiple of 16 keeps the alignment.
    """

    def __init__(
        self, shape: Sequence[int], dtype: torch.dtype, device: torch.device | str, gap: int = 0, offset: int = _MARGIN
    ) -> None:
        self._columns = shape[-1] if len(shape) else 1
        self._rows = torch.Size(shape[:-1]).numel()
        self._stride = self._columns + gap
        self._offset = offset
        length = offset + self._rows * self._stride + _MARGIN
        bytes_ = torch.full((length * dtype.itemsize,), _GUARD, dtype=torch.uint8, device=device)
        self._buffer = bytes_.view(dtype)
        self._inside(self._buffer).view(torch.uint8).fill_(_POISON)
        leading = [self._stride * torch.Size(shape[i + 1 : -1]).numel() for i in range(len(shape) - 1)]
        self.tensor = self._buffer.as_strided(tuple(shape), (*leading, 1)[: len(shape)], offset)

    def _inside(self, buffer: torch.Tensor) -> torch.Tensor:
        return buffer.as_strided((self._rows, self._columns), (self._stride, 1), self._offset)

    def assert_margins_untouched(self) -> None:
        copy = self._buffer.clone()
        self._inside(copy).view(torch.uint8).fill_(_GUARD)
        copied = copy.view(torch.uint8)
        assert torch.equal(copied, torch.full_like(copied, _GUARD))


def assert_same_bytes(got: torch.Tensor, expected: torch.Tensor) -> None:
    # A copy: with one column, or one row, a tensor may pass for contiguous and still have another stride.
    a, b = (t.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8) for t in (got, expected))
    assert torch.equal(a, b)


def check_per_tensor(x: torch.Tensor, gap: int = 0, offset: int = 16, scale: float | None = None) -> None:
    """With a given scale, or a computed one."""
    q = Guarded(x.shape, FP8, x.device, gap, offset)
    s = Guarded((1,), torch.float32, x.device)
    expected_q, expected_s = torch.empty(x.shape, dtype=FP8, device=x.device), torch.empty(1, device=x.device)
    if scale is not None:
        s.tensor.fill_(scale)
        expected_s.fill_(scale)
    before = x.clone()
    family.per_tensor_quant_fp8(x, q.tensor, s.tensor, scale is not None)
    reference.per_tensor_quant_fp8(x, expected_q, expected_s, scale is not None)
    _assert_equal(x, before, q, s, expected_q, expected_s)


def check_per_token(x: torch.Tensor, gap: int = 0, offset: int = 16) -> None:
    q = Guarded(x.shape, FP8, x.device, gap, offset)
    s = Guarded((*x.shape[:-1], 1), torch.float32, x.device)
    expected_q = torch.empty(x.shape, dtype=FP8, device=x.device)
    expected_s = torch.empty(*x.shape[:-1], 1, device=x.device)
    before = x.clone()
    family.per_token_quant_fp8(x, q.tensor, s.tensor)
    reference.per_token_quant_fp8(x, expected_q, expected_s)
    _assert_equal(x, before, q, s, expected_q, expected_s)


def _assert_equal(
    x: torch.Tensor,
    before: torch.Tensor,
    q: Guarded,
    s: Guarded,
    expected_q: torch.Tensor,
    expected_s: torch.Tensor,
) -> None:
    assert torch.equal(s.tensor.isfinite(), torch.ones_like(s.tensor, dtype=torch.bool))
    assert_same_bytes(s.tensor, expected_s)
    assert_same_bytes(q.tensor, expected_q)
    q.assert_margins_untouched()
    s.assert_margins_untouched()
    assert_same_bytes(x, before)


def check(x: torch.Tensor, gap: int = 0, offset: int = 16) -> None:
    """Both ops, every scale."""
    check_per_tensor(x, gap, offset)
    check_per_tensor(x, gap, offset, scale=0.0123)
    check_per_token(x, gap, offset)


def random(*shape: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
    """Values over many magnitudes, so that every exponent of e4m3 occurs."""
    torch.manual_seed(sum(size * 31**i for i, size in enumerate(shape)))
    x = torch.randn(shape, device=device) * torch.exp2(torch.randint(-12, 4, shape, device=device).float())
    return x.to(dtype)
