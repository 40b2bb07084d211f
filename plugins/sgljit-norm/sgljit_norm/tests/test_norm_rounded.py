"""``round_first``: the bits of kernels one after the other, each of which rounds; on both devices."""

from __future__ import annotations

import pytest
import torch

from sgljit_core import ops
from sgljit_norm import reference, samples

from .helpers import DTYPES, Arguments, Guarded, clones, make

norm = ops["norm"]
OPS = ["fused_add_rmsnorm", "gemma_fused_add_rmsnorm", "fused_rmsnorm_add_rmsnorm", "gemma_fused_rmsnorm_add_rmsnorm"]
each_op = pytest.mark.parametrize("op", [OPS[0], *(pytest.param(op, marks=pytest.mark.slow) for op in OPS[1:])])
each_dtype = pytest.mark.parametrize(
    "dtype", [x if x is torch.bfloat16 else pytest.param(x, marks=pytest.mark.slow) for x in DTYPES], ids=str
)  # each compiles programs of its own


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device


def one_after_the_other(op: str, call: Arguments) -> dict[str, torch.Tensor]:
    """By PyTorch's addition and our norms."""
    rmsnorm = norm.gemma_rmsnorm if op.startswith("gemma") else norm.rmsnorm
    x, eps = call["input"].clone(), call.get("eps", 1e-6)
    if "next_weight" in call:
        rmsnorm(x, call["weight"], eps=eps)
    residual = call["residual"] + x
    rmsnorm(residual, call.get("next_weight", call["weight"]), x, eps)
    return {"input": x, "residual": residual}


def check(op: str, call: Arguments, offset: int = 8) -> None:
    """On CUDA the same bits where a warp holds a row of whole loads in both kernels; else a sum has another order."""
    dtype, size = call["input"].dtype, call["input"].shape[1]
    held_by_a_warp = size % 16 == offset % 8 == 0 and size * dtype.itemsize <= 512 and dtype != torch.float32
    wanted, run = one_after_the_other(op, call), clones(call)
    guarded = {name: Guarded(call[name], offset) for name in wanted}
    getattr(norm, op)(**run | {name: guard.tensor for name, guard in guarded.items()} | {"round_first": True})
    for name, right in wanted.items():
        guarded[name].assert_margins_untouched()
        got = guarded[name].tensor
        if right.device.type == "cpu" or held_by_a_warp or (name == "residual" and "next_weight" not in call):
            assert torch.equal(got, right), name
        else:
            close = 4 * torch.finfo(dtype).eps
            torch.testing.assert_close(got, right, rtol=close, atol=4 * close)
            assert dtype == torch.float32 or (got != right).count_nonzero() <= 0.01 * got.numel()


@each_op
@each_dtype
@pytest.mark.parametrize("size", [1, 65, 128, 256, 1000, 4096, 16384])
def test_it_has_the_bits_of_kernels_one_after_the_other(
    op: str, size: int, dtype: torch.dtype, device: torch.device
) -> None:
    for rows in (0, 1, 3, 1025):
        for offset in (8, 3):
            check(op, make(op, rows, size, dtype, device), offset)


@each_op
@each_dtype
def test_samples(op: str, dtype: torch.dtype, device: torch.device) -> None:
    chosen = [x for x in getattr(samples, op)(device) if x.get("round_first") and x["input"].dtype == dtype]
    assert chosen
    for sample in chosen:
        check(op, sample)


@each_op
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)], ids=str)
def test_without_it_the_norm_reads_what_is_not_rounded(op: str, dtype: torch.dtype, device: torch.device) -> None:
    call = make(op, 129, 256, dtype, device)
    once, twice = clones(call), clones(call)
    getattr(norm, op)(**once)
    getattr(norm, op)(**twice, round_first=True)
    exact = {name: value.double() for name, value in call.items()}
    getattr(reference, op)(**exact)
    errors = [float((run["input"].double() - exact["input"]).norm()) for run in (once, twice)]
    assert errors[0] < 0.9 * errors[1]


@each_op
def test_nan_and_infinity_stay_in_their_row(op: str, device: torch.device) -> None:
    call = make(op, 4, 128, torch.bfloat16, device)
    call["input"][1, 5], call["residual"][2, 7] = float("nan"), float("inf")
    getattr(norm, op)(**call, round_first=True)
    assert call["input"].isnan().any(-1).tolist() == [False, True, True, False]
    assert call["residual"].isfinite().all(-1).tolist() == [True, False, False, True]
