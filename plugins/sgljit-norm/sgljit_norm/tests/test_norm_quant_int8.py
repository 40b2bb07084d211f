"""The norms with int8 out, on both devices: within half a step of float64, rounded first or not."""

from __future__ import annotations

import math

import pytest
import torch

from sgljit_core import ops
from sgljit_norm import reference
from sgljit_quant.tests.powers import in_groups

from .test_norm_quant import each_dtype, make, one_op

OPS = ["rmsnorm_quant", "fused_add_rmsnorm_quant"]
ROUNDED = {torch.float32: 2**-22, torch.float16: 2**-10, torch.bfloat16: 2**-7}
each_op = pytest.mark.parametrize("op", OPS)
norm = ops["norm"]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device  # "cuda" with its index


@pytest.mark.slow
@each_op
@each_dtype
def test_each_kind_of_scale(op: str, dtype: torch.dtype, device: torch.device):
    torch.manual_seed(0)
    for rows, size in ((1, 128), (3, 65), (33, 384), (5, 4096)):
        call = make(op, torch.randn(rows, size, device=device).to(dtype))
        total = call["input"].double() + (call["residual"].double() if "residual" in call else 0)
        normed = torch.empty_like(total)
        reference.rmsnorm(total, call["weight"], normed)
        kinds = [(torch.empty(rows, 1, device=device), False), (torch.full((1,), 0.02, device=device), True)]
        if size % 128 == 0:
            kinds.append((torch.empty(size // 128, rows, device=device).t(), False))
        for (s, is_static), round_first in (
            (kind, flag)
            for number, kind in enumerate(kinds)
            for flag in (False, True)
            # On the CPU each is compiled. In the quick tests one op takes half of them, and the other the other half.
            if device.type != "cpu" or dtype is not torch.bfloat16 or (number + flag + OPS.index(op)) % 2
        ):
            wide = torch.full((rows, size + 32), 0x55, dtype=torch.int8, device=device)
            run = {name: value.clone() for name, value in call.items()}
            q = wide[:, 16 : 16 + size]
            getattr(norm, op)(**run, output_q=q, output_s=s, is_static=is_static, round_first=round_first)
            y, scale = in_groups(normed, s.double())
            slack = (ROUNDED[dtype] if round_first else 0) + 2**-18
            if not is_static:
                wanted = y.abs().amax(-1, keepdim=True) / 127
                assert ((scale - wanted).abs() <= wanted * slack).all()
            error = (in_groups(q.double(), s)[0] * scale - y.clamp(-128 * scale, 127 * scale)).abs()
            assert (error <= scale / 2 * 1.0001 + y.abs() * slack).all()
            assert q.double().abs().amax() > 50
            assert (wide[:, :16] == 0x55).all()
            assert (wide[:, 16 + size :] == 0x55).all()
            assert "residual" not in run or torch.equal(run["residual"], total.to(dtype))


@pytest.mark.parametrize("op", [pytest.param(OPS[0], marks=pytest.mark.slow), OPS[1]])
def test_rounded_first_it_is_a_norm_and_a_quantisation(op: str):
    """The same bits on the CPU, where both sum a row in one order."""
    torch.manual_seed(0)
    call = make(op, torch.randn(33, 1000).bfloat16())
    s, q = torch.empty(33, 1), torch.empty(33, 1000, dtype=torch.int8)
    getattr(norm, op)(**{name: x.clone() for name, x in call.items()}, output_q=q, output_s=s, round_first=True)
    getattr(norm, op.removesuffix("_quant"))(**call, **({"round_first": True} if "residual" in call else {}))
    y = call["input"].float()
    scale = y.abs().amax(-1, keepdim=True) / 127
    assert torch.equal(s, scale)
    assert torch.equal(q, (y * scale.reciprocal()).round().clamp(-128, 127).to(torch.int8))


@one_op
def test_a_row_of_nan_is_zeros(op: str, device: torch.device):
    x = torch.ones(2, 256, device=device, dtype=torch.bfloat16)
    x[0, 5] = math.nan
    call = make(op, x, torch.ones(256, device=device, dtype=torch.bfloat16))
    if "residual" in call:
        call["residual"].zero_()
    q, s = torch.full((2, 256), 99, dtype=torch.int8, device=device), torch.empty(2, 1, device=device)
    getattr(norm, op)(**call, output_q=q, output_s=s)
    assert s[0].item() == 2.0**-126
    assert (q[0] == 0).all()
    assert (q[1] == 127).all()
