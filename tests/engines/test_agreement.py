"""The bound of every op: what agrees, and what is found, and that its two forms say the same."""

from __future__ import annotations

import math

import pytest
import torch

from sgljit_engines.agreement import TOLERANCES, difference, same_bits, share

HALVES = [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


def wide(rows: int = 8) -> torch.Tensor:
    """Numbers as models have: most small, some columns a hundred times as large."""
    generator = torch.Generator().manual_seed(0)
    columns = torch.randn(512, generator=generator).mul(1.5).exp().clamp(max=30)
    return torch.randn(rows, 512, generator=generator, dtype=torch.float64) * columns


def cut(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounded towards zero."""
    nearest = x.to(dtype)
    lower = (nearest.view(torch.uint8 if dtype.itemsize == 1 else torch.int16) - 1).view(dtype)
    return torch.where(nearest.double().abs() > x.abs(), lower.double(), nearest.double()).to(dtype)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_what_is_rounded_once_agrees(dtype):
    x = wide().clamp(-400, 400)
    assert difference(x.to(dtype), x) is None
    assert share(x.to(dtype), x) < 1


@pytest.mark.parametrize("dtype", HALVES)
def test_what_is_cut_off_is_found_in_the_mean_alone(dtype):
    x = wide().clamp(-400, 400)
    found = difference(cut(x, dtype), x)
    assert found.startswith("is rounded to one side: in the mean its elements are 0.3")
    assert found.endswith(" units in the last place below the reference's")
    assert 1 < share(cut(x, dtype), x) < 2
    assert difference(cut(-x, dtype), -x) == found, "below is towards zero"
    few = x[:1]
    assert difference(cut(few, dtype), few) is None, "512 elements are too few"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_one_element_is_found(dtype):
    x = wide()
    wrong = x.to(dtype)
    wrong[3, 7] += 100
    assert difference(wrong, x).startswith("differs at [3, 7]: ")
    assert difference(wrong, x).endswith("; 1 of 4096 elements differ")
    assert share(wrong, x) > 1


def test_two_roundings_are_no_bias():
    """As engines compute it, whose own code rounds the activation before the product."""
    gate, up = wide().bfloat16(), wide().flip(0).bfloat16()
    own = torch.nn.functional.silu(gate) * up
    ours = (torch.nn.functional.silu(gate.double()) * up.double()).bfloat16()
    assert difference(ours, own) is None
    assert share(ours, own) < 0.5


@pytest.mark.parametrize(
    ("got", "wanted", "agrees"),
    [
        ([math.nan, 1.0], [math.nan, 1.0], True),
        ([math.inf, 1.0], [math.inf, 1.0], True),
        ([math.inf, 1.0], [-math.inf, 1.0], False),
        ([1.0, 1.0], [math.nan, 1.0], False),
        ([math.nan, 1.0], [1.0, 1.0], False),
        ([math.inf, 1.0], [1.0, 1.0], False),
        ([math.inf, 1.0], [1e39, 1.0], True),
        ([-math.inf, 1.0], [1e39, 1.0], False),
        ([0.0, 0.0], [0.0, 0.0], True),
        ([1e-3, 0.0], [0.0, 0.0], False),
        ([], [], True),
    ],
)
def test_numbers_that_are_none(got, wanted, agrees):
    pair = torch.tensor(got), torch.tensor(wanted, dtype=torch.float64)
    assert (difference(*pair) is None) == (share(*pair) <= 1) == agrees


def test_integers_must_be_equal():
    x = torch.tensor([1, 2, 3])
    assert share(x, x) == 0
    assert share(x, x + (x == 2)) == math.inf
    assert difference(x, x + (x == 2)) == "differs at [1]: 2, and the reference gives 3; 1 of 3 elements differ"
    assert share(x, x[:2]) == math.inf
    assert difference(x, x[:2]) == "has the shape [3], and the reference's has [2]"


def test_the_same_bits():
    x = torch.tensor([0.0, math.nan])
    assert same_bits([x, 1], [x.clone(), 1])
    assert not same_bits(x, -x)


def test_the_tolerance_may_be_that_of_another_dtype():
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    assert difference(x * (1 + 2**-10), x).startswith("differs at ")
    assert difference(x * (1 + 2**-10), x, torch.float16) is None
