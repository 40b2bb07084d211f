"""The activation of experts that have fewer tokens than there is room for, quantised: as the op for all rows."""

from __future__ import annotations

import re

import pytest
import torch

from sgljit_activation import samples
from sgljit_core import ops
from sgljit_core.errors import TensorMatchError

FP8 = torch.float8_e4m3fn
DTYPES = [torch.bfloat16, *(pytest.param(x, marks=pytest.mark.slow) for x in (torch.float32, torch.float16))]
family = ops["activation"]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device  # "cuda" with its index


@pytest.mark.parametrize("activation", ["silu_and_mul", "clamped_swiglu"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_counted_rows_are_those_of_the_op_for_all_and_the_others_stay(
    dtype: torch.dtype, activation: str, device: torch.device
):
    """Which tests of its own compare with float64."""
    of_all, of_counted = (getattr(family, f"{activation}_{name}") for name in ("quant", "masked_quant"))
    chosen = [x for x in getattr(samples, f"{activation}_masked_quant")(device) if x["input"].dtype == dtype]
    assert chosen
    for sample in chosen:
        q, scales = sample["output_q"], sample["output_s"]
        q.view(torch.uint8).fill_(0x2A)
        scales.fill_(42)
        expected_q, expected_s = q.clone(), scales.clone()
        options = {name: value for name, value in sample.items() if not isinstance(value, torch.Tensor)}
        for i, count in enumerate(sample["counts"].tolist()):
            rows, found = sample["input"][i, :count], scales[i, :count].clone()
            of_all(rows, expected_q[i, :count], found, **options)
            expected_s[i, :count] = found
        before = sample["input"].clone()
        of_counted(**sample)
        assert torch.equal(q.view(torch.uint8), expected_q.view(torch.uint8))
        assert torch.equal(scales, expected_s)
        assert torch.equal(sample["input"], before)


def test_long_rows(device: torch.device):
    """On CUDA blocks share a long row where rows are few."""
    torch.manual_seed(0)
    counts = torch.tensor([1, 0, 2], dtype=torch.int32, device=device)
    x = torch.randn(3, 2, 2 * 18432, device=device).bfloat16()
    q, scales = torch.zeros(3, 2, 18432, device=device).to(FP8), torch.full((3, 2, 144), 42.0, device=device)
    expected_q, expected_s = q.clone(), scales.clone()
    family.silu_and_mul_masked_quant(x, q, scales, counts)
    for i, count in enumerate(counts.tolist()):
        found = torch.empty(count, 144, device=device)
        family.silu_and_mul_quant(x[i, :count], expected_q[i, :count], found)
        expected_s[i, :count] = found
    assert torch.equal(q.view(torch.uint8), expected_q.view(torch.uint8))
    assert torch.equal(scales, expected_s)


def test_rows_at_odd_addresses_are_quantised_as_aligned_ones(device: torch.device):
    """On CUDA loads of four elements at least hold a group."""
    torch.manual_seed(0)
    counts, wide = torch.tensor([3, 0, 2], dtype=torch.int32, device=device), torch.randn(3, 3, 516, device=device)
    for first in (1, 2, 4):
        x = wide[..., first : first + 512]
        memory = torch.full((3, 3, 264), 0x2A, dtype=torch.uint8, device=device)
        q, scales = memory[..., first : first + 256].view(FP8), torch.full((3, 3, 2), 42.0, device=device)
        expected = memory.clone()
        wanted_q, wanted_s = torch.empty(3, 3, 256, dtype=FP8, device=device), scales.clone()
        if device.type == "cuda" and first < 4:
            with pytest.raises(TensorMatchError, match="groups of 128 elements need rows at multiples of 4 elements"):
                family.silu_and_mul_masked_quant(x, q, scales, counts)
        else:
            family.silu_and_mul_masked_quant(x, q, scales, counts)
            family.silu_and_mul_masked_quant(x.contiguous(), wanted_q, wanted_s, counts)
            for i, count in enumerate(counts.tolist()):
                expected[i, :count, first : first + 256] = wanted_q[i, :count].view(torch.uint8)
        assert torch.equal(memory, expected)
        assert torch.equal(scales, wanted_s)


def good_call(device: torch.device) -> dict[str, torch.Tensor]:
    return {
        "input": torch.ones(2, 3, 512, device=device),
        "output_q": torch.zeros(2, 3, 256, device=device).to(FP8),
        "output_s": torch.zeros(2, 3, 2, device=device),
        "counts": torch.tensor([3, 1], dtype=torch.int32, device=device),
    }


BAD = {
    "dimensions of input": ({"input": torch.zeros(3, 512)}, "input", "expected 3 but got 2"),
    "dtype of output_q": ({"output_q": torch.zeros(2, 3, 256).char()}, "output_q", "float8_e4m3fn but got int8"),
    "size of output_q": ({"output_q": torch.zeros(2, 3, 384).to(FP8)}, "output_q", "a row: expected 256 but got 384"),
    "tokens of output_s": ({"output_s": torch.zeros(2, 4, 2)}, "output_s", "expected 3 but got 4"),
    "groups": ({"output_s": torch.zeros(2, 3, 1)}, "output_s", "a row: expected 2 but got 1"),
    "dtype of output_s": ({"output_s": torch.zeros(2, 3, 2).half()}, "output_s", "expected float32 but got float16"),
    "part of a group": (
        {"input": torch.zeros(2, 3, 400), "output_q": torch.zeros(2, 3, 200).to(FP8)},
        "input",
        "expected whole groups of 128 but got 200",
    ),
    "dtype of counts": ({"counts": torch.tensor([3, 1])}, "counts", "expected int32 but got int64"),
    "number of counts": ({"counts": torch.tensor([3]).int()}, "counts", "expected 2 elements but got 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_match_is_refused_with_the_cause(case: str, device: torch.device):
    change, name, text = BAD[case]
    call = good_call(device) | {key: value.to(device) for key, value in change.items()}
    for op in (family.silu_and_mul_masked_quant, family.clamped_swiglu_masked_quant):
        with pytest.raises(TensorMatchError, match=rf"(?s)Tensor match failed for {name}, Tensor<.*{re.escape(text)}"):
            op(**call)


def test_numbers_that_do_not_fit(device: torch.device):
    for change, text in (
        ({"limit": 0.0}, "limit must be positive in float32, got 0"),
        ({"alpha": float("nan")}, "alpha must be a finite number of float32, got nan"),
        (
            {"output_s": torch.zeros(2, 3, 1, dtype=torch.int32, device=device)},
            "output_s of int32 .* so it needs scale_ue8m0=True",
        ),
    ):
        with pytest.raises(ValueError, match=f"^clamped_swiglu_masked_quant: {text}"):
            family.clamped_swiglu_masked_quant(**good_call(device) | change)


def test_words_need_powers(device: torch.device):
    words = torch.zeros(2, 3, 1, dtype=torch.int32, device=device)
    with pytest.raises(
        ValueError, match=r"silu_and_mul_masked_quant: output_s of int32 .* so it needs scale_ue8m0=True"
    ):
        family.silu_and_mul_masked_quant(**good_call(device) | {"output_s": words})


@pytest.mark.parametrize("count", [-1, 4])
def test_a_count_out_of_range_is_refused_on_the_cpu(count: int):
    call = good_call(torch.device("cpu")) | {"counts": torch.tensor([3, count], dtype=torch.int32)}
    with pytest.raises(TensorMatchError, match=f"element 1 is {count}, and input has 3 rows for each"):
        family.silu_and_mul_masked_quant(**call)
