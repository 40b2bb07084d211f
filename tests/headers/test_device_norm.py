"""RMSNorm made of impl/norm.cuh's parts, on the GPU, against float64."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def module(build):
    return build("norm.cu")


@pytest.mark.parametrize("rows", [0, 1, 5, 128, 1000])
@pytest.mark.parametrize("hidden", [64, 128, 256, 512, 768, 4096, 8192])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_rmsnorm(module, dtype: torch.dtype, hidden: int, rows: int) -> None:
    x = torch.randn(rows, hidden, device="cuda", dtype=dtype)
    weight = torch.randn(hidden, device="cuda", dtype=dtype)
    out = torch.full_like(x, torch.nan)
    getattr(module, f"rmsnorm_{str(dtype).removeprefix('torch.')}_{hidden}")(out, x, weight, 1e-6)
    wide = x.double()
    wanted = wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.double()
    # Rounded once, as `wanted` is. The errors of float, which reach each element before that, are far below 1 % of it.
    ideal = (wanted.to(dtype).double() - wanted).norm()
    assert (out.double() - wanted).norm() <= 1.01 * ideal
