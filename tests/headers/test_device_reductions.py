"""Reductions on the GPU: every lane mask, every block size, every type, against PyTorch."""

from __future__ import annotations

import random

import pytest
import torch

pytestmark = pytest.mark.gpu

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64]
OPS = ["sum", "max", "min"]


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def numbers(*shape: int, dtype: torch.dtype, sign: int = 0) -> torch.Tensor:
    """Small integers, whose sums are exact in every type; ``sign`` makes all of them positive or negative."""
    values = (
        torch.randint(-1, 2, shape, device="cuda") if not sign else sign * torch.randint(1, 3, shape, device="cuda")
    )
    return values.to(dtype)


def reference(op: str, values: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """The reduction over the last dimension of what ``keep`` marks, in float64."""
    neutral = {"sum": 0.0, "max": -torch.inf, "min": torch.inf}[op]
    wide = torch.where(keep, values.double(), neutral)
    return {"sum": wide.sum, "max": wide.amax, "min": wide.amin}[op](dim=-1, keepdim=True)


@pytest.fixture(scope="module")
def module(build):
    return build("reductions.cu")


@pytest.fixture(scope="module")
def masks() -> torch.Tensor:
    """All masks of one or two lanes and of all but one or two, all runs of lanes, and many random ones."""
    few = {1 << i | 1 << j for i in range(32) for j in range(32)}
    chosen = few | {0xFFFFFFFF ^ mask for mask in few}
    chosen |= {((1 << length) - 1) << start for length in range(1, 33) for start in range(33 - length)}
    rng = random.Random(0)
    chosen |= {rng.getrandbits(32) & rng.getrandbits(32) for _ in range(2000)}
    chosen |= {rng.getrandbits(32) for _ in range(2000)}
    chosen.discard(0)
    signed = [mask - 2**32 if mask >= 2**31 else mask for mask in sorted(chosen)]
    return torch.tensor(signed, dtype=torch.int32, device="cuda")


@pytest.mark.parametrize("group", [32, 8])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", TYPES, ids=name)
def test_warp(module, masks, dtype: torch.dtype, op: str, group: int) -> None:
    sentinel = 77
    for sign in (0, 1, -1):
        values = numbers(len(masks), 32, dtype=dtype, sign=sign)
        out = torch.full_like(values, sentinel)
        getattr(module, f"warp_{op}_{name(dtype)}_{group}")(out, values, masks)
        active = (masks[:, None] >> torch.arange(32, device="cuda", dtype=torch.int32)) & 1 == 1
        groups = (len(masks), 32 // group, group)
        wanted = reference(op, values.view(groups), active.view(groups)).expand(groups).reshape(values.shape)
        assert torch.equal(out.double(), torch.where(active, wanted, sentinel))


def test_every_one_of_the_masks(module) -> None:
    wrong = torch.zeros(1, dtype=torch.int64, device="cuda")
    chunk = 2**28
    for begin in range(0, 2**32, chunk):
        module.every_mask(begin, chunk, wrong)
    assert wrong.item() == 0


@pytest.mark.parametrize("threads", [*range(32, 1025, 32), 1, 2, 31, 33, 63, 100, 255, 257, 511, 1000, 1023])
def test_cta(module, threads: int) -> None:
    for dtype in TYPES:
        for op in OPS:
            for sign in (0, 1, -1):
                if sign and op == "sum" and dtype.itemsize == 2:
                    continue  # the sum of 1024 numbers of one sign is not exact in 8 bits
                values = numbers(16, threads, dtype=dtype, sign=sign)
                stored = torch.full_like(values, 77)
                returned = torch.full((16, 32), 77, dtype=dtype, device="cuda")
                getattr(module, f"cta_{op}_{name(dtype)}")(returned, stored, values)
                wanted = reference(op, values, torch.ones_like(values, dtype=torch.bool))
                assert torch.equal(stored.double(), wanted.expand_as(stored)), (dtype, op, sign)
                lanes = min(threads, 32)
                assert torch.equal(returned[:, :lanes].double(), wanted.expand(16, lanes)), (dtype, op, sign)


def test_sums_of_floats_are_accurate(module) -> None:
    values = torch.randn(256, 1024, device="cuda")
    stored, returned = torch.empty_like(values), torch.empty(256, 32, device="cuda")
    module.cta_sum_float32(returned, stored, values)
    torch.testing.assert_close(stored[:, 0].double(), values.double().sum(1), rtol=0, atol=1e-4)


@pytest.mark.parametrize("threads", range(32, 1025, 32))
def test_every_thread_gets_what_the_block_is_reduced_to(module, threads: int) -> None:
    values = numbers(16, threads, dtype=torch.float32, sign=0)
    total, top, bottom = values.sum(1), values.amax(1), values.amin(1)
    wanted = torch.stack([total, 2 * total, top, -bottom], -1)[:, None].expand(16, threads, 4)
    for is_fixed in (False, True) if threads in (32, 256, 288, 1024) else (False,):
        out = torch.full((16, threads, 4), 77.0, device="cuda")
        module.all_reduce(out, values, is_fixed)
        assert torch.equal(out, wanted)


def test_bounds(module) -> None:
    values = torch.linspace(-5, 5, 64, device="cuda")
    out = torch.empty(2, device="cuda")
    for bound in (-9.0, -1.0, 0.0, 1.0, 9.0):
        module.cta_bounds(out, values, bound)
        assert out.tolist() == [max(5.0, bound), min(-5.0, bound)]
