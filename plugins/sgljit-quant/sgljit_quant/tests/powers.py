"""For the tests of all families with a quantised result: the groups of its scales, and scales of powers of two.

A power of two is found by a search among all, not by the bits of a float, as the kernels and the references find it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


def in_groups(y: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values by the scale that they have, and the scale of each."""
    scale = s.reshape(1, 1, 1) if s.ndim == 1 else s[..., None]
    return y.reshape(-1, s.shape[-1], y.shape[-1] // s.shape[-1]), scale


def layouts(rows: int, groups: int, device: torch.device) -> list[torch.Tensor]:
    """Scales of groups by rows and by columns; their exponents, four to a word, likewise."""
    words = -(-groups // 4)
    return [
        torch.empty(rows, groups, device=device),
        torch.empty(groups, rows + 3, device=device).t()[:rows],
        torch.full((rows, words), 0x55555555, dtype=torch.int32, device=device),
        torch.full((words, rows + 3), 0x55555555, dtype=torch.int32, device=device).t()[:rows],
    ]


def check_powers(
    run: Callable[[torch.Tensor, torch.Tensor], object],
    exact: torch.Tensor,
    s: torch.Tensor,
    dtype: torch.dtype,
    *,
    slack: float,
    rounded: torch.Tensor | None = None,
) -> None:
    """``run(q, s)`` with one of ``layouts``, into an output between others: within half a step of what is quantised.

    Args:
        run: what computes the result and its scales.
        exact: what is quantised, float64.
        slack: the relative error of the arithmetic before.
        rounded: the floats that are quantised. With them, scales and result must have the right bits.
    """
    rows, size = exact.shape
    largest, least = (127, -128) if dtype is torch.int8 else (448, -448)
    wide = torch.full((rows, size + 32), 0x55, dtype=torch.uint8, device=exact.device)
    q = wide[:, 16 : 16 + size].view(dtype)
    run(q, s)
    assert (wide[:, :16] == 0x55).all()
    assert (wide[:, 16 + size :] == 0x55).all()
    scale = s
    if s.dtype is torch.int32:
        bytes_, groups = s.clone(memory_format=torch.contiguous_format).view(torch.uint8), size // 128
        assert (bytes_[:, groups:] == 0x55).all(), "bytes beyond the groups are left"
        scale = (bytes_[:, :groups].double() - 127).exp2().float()
    y, of_each = in_groups(exact, scale.double())
    fraction = y.abs().amax(-1, keepdim=True) / largest / of_each
    assert ((fraction > 0.5 - slack) & (fraction < 1 + slack)).all()
    error = (in_groups(q.double(), scale)[0] * of_each - y).abs()
    step = of_each / 2 if dtype is torch.int8 else y.abs() / 16 + of_each * 2**-10
    assert (error <= step * 1.001 + y.abs() * slack).all()
    if rounded is None:
        return
    y, of_each = in_groups(rounded.float(), scale)
    magnitudes = y.abs().amax(-1)
    quotients = (magnitudes / torch.full_like(magnitudes, largest)).double().clamp(2.0**-126, 2.0**127)
    powers = torch.arange(-126, 128, device=s.device).double().exp2()
    assert torch.equal(scale, powers[torch.searchsorted(powers, quotients)].float())
    expected = (y / of_each).clamp(least, largest)
    expected = (expected.round() if dtype is torch.int8 else expected).to(dtype).view(rows, size)
    assert torch.equal(q.view(torch.uint8), expected.view(torch.uint8))
