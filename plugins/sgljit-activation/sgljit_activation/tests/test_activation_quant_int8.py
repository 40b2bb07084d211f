"""The activation with int8 out, on both devices: within half a step of float64, and the bits of two ops if rounded."""

from __future__ import annotations

import math

import pytest
import torch

from sgljit_activation import reference
from sgljit_core import ops
from sgljit_quant.tests.powers import in_groups

from .test_activation_quant import each_dtype

family = ops["activation"]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device  # "cuda" with its index


@each_dtype
def test_each_kind_of_scale(dtype: torch.dtype, device: torch.device):
    torch.manual_seed(0)
    for rows, size in ((1, 128), (3, 65), (33, 384), (5, 4096)):
        x = (torch.randn(rows, 2 * size, device=device) * 4).to(dtype)
        exact = reference.silu_and_mul(x, torch.empty(rows, size, dtype=torch.float64, device=device))
        kinds = [(torch.empty(rows, 1, device=device), False), (torch.full((1,), 0.1, device=device), True)]
        if size % 128 == 0:
            kinds.append((torch.empty(size // 128, rows, device=device).t(), False))
        for (s, is_static), round_first in (
            (kind, flag)
            for number, kind in enumerate(kinds)
            for flag in (False, True)
            # On the CPU each is compiled. The quick tests take half of them here, and more with FP8.
            if device.type != "cpu" or dtype is not torch.bfloat16 or (number + flag) % 2
        ):
            wide = torch.full((rows, size + 32), 0x55, dtype=torch.int8, device=device)
            q = wide[:, 16 : 16 + size]
            family.silu_and_mul_quant(x, q, s, is_static=is_static, round_first=round_first)
            if round_first:
                rounded, scale = in_groups(family.silu_and_mul(x).float(), s)
                expected = (rounded * scale.reciprocal()).round().clamp(-128, 127).to(torch.int8)
                assert torch.equal(q, expected.reshape(q.shape))
            else:
                y, scale = in_groups(exact, s.double())
                if not is_static:
                    wanted = y.abs().amax(-1, keepdim=True) / 127
                    assert ((scale - wanted).abs() <= wanted * 2**-14).all()
                error = (in_groups(q.double(), s)[0] * scale - y.clamp(-128 * scale, 127 * scale)).abs()
                assert (error <= scale / 2 * 1.0001 + y.abs() * 2**-14).all()
            assert (wide[:, :16] == 0x55).all()
            assert (wide[:, 16 + size :] == 0x55).all()


def test_nan_and_infinity(device: torch.device):
    x = torch.cat([torch.full((1, 256), 20.0), torch.ones(1, 256)], 1).to(device, torch.bfloat16)
    x[0, 256], x[0, 257] = math.nan, -math.inf
    q, s = torch.full((1, 256), 99, dtype=torch.int8, device=device), torch.empty(1, 2, device=device)
    family.silu_and_mul_quant(x, q, s)
    assert q[0, :3].tolist() == [0, -128, 0]
    assert (q[0, 128:] == 127).all()
