"""The rows of experts that have fewer than there is room for: byte by byte as the reference, and no other byte."""

from __future__ import annotations

import re

import pytest
import torch

from sgljit_core.errors import TensorMatchError
from sgljit_quant import column_major_scales, packed_scales, reference, samples

from .helpers import DTYPES, FP8, Guarded, assert_same_bytes, family, random

each_dtype = pytest.mark.parametrize(
    "dtype", [x if x is torch.bfloat16 else pytest.param(x, marks=pytest.mark.slow) for x in DTYPES], ids=str
)
COUNTS = {0: [], 1: [1], 3: [0, 5, 2], 4: [7, 0, 1, 7]}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device  # "cuda" with its index


def poisoned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.fill_(0x2A2A2A2A if tensor.dtype is torch.int32 else 42.0)


@each_dtype
@pytest.mark.parametrize("groups", [1, 4, 5, 16, 56])
def test_the_counted_rows_alone_are_written(groups: int, dtype: torch.dtype, device: torch.device):
    for experts, listed in COUNTS.items():
        x = random(experts, 7, groups * 128, dtype=dtype, device=device)
        before, counts = x.clone(), torch.tensor(listed, dtype=torch.int32, device=device)
        words = -(-groups // 4)
        in_rows = torch.empty(experts, 7, words, dtype=torch.int32, device=device)
        for scales in (
            torch.empty(experts, 7, groups, device=device),
            column_major_scales(7, groups, device, experts=experts),
            in_rows,
            packed_scales(7, groups * 128, device, experts=experts),
        ):
            for scale_ue8m0 in (True, False) if scales.dtype is torch.float32 else (True,):
                q, expected_q = Guarded(x.shape, FP8, device, gap=8), torch.empty(x.shape, dtype=FP8, device=device)
                expected_q.copy_(q.tensor)
                expected_s = poisoned(scales).clone()
                family.masked_group_quant_fp8(x, q.tensor, scales, counts, scale_ue8m0=scale_ue8m0)
                reference.masked_group_quant_fp8(x, expected_q, expected_s, counts, scale_ue8m0=scale_ue8m0)
                assert_same_bytes(q.tensor, expected_q)
                assert_same_bytes(scales, expected_s)
                q.assert_margins_untouched()
        assert_same_bytes(x, before)


@each_dtype
def test_rows_at_odd_addresses(dtype: torch.dtype, device: torch.device):
    """On CUDA loads of four elements at least hold a group."""
    counts = torch.tensor([3, 0, 2], dtype=torch.int32, device=device)
    wide = random(3, 3, 260, dtype=dtype, device=device)
    for first, gap in ((1, 3), (2, 2), (4, 4)):
        x, scales = wide[..., first : first + 256], poisoned(torch.empty(3, 3, 2, device=device))
        q = Guarded(x.shape, FP8, device, gap=gap, offset=16 + first)
        expected_q, expected_s = q.tensor.clone(), scales.clone()
        if device.type == "cuda" and first < 4:
            with pytest.raises(TensorMatchError, match="groups of 128 elements need rows at multiples of 4 elements"):
                family.masked_group_quant_fp8(x, q.tensor, scales, counts)
        else:
            family.masked_group_quant_fp8(x, q.tensor, scales, counts)
            reference.masked_group_quant_fp8(x, expected_q, expected_s, counts)
        assert_same_bytes(q.tensor, expected_q)
        assert_same_bytes(scales, expected_s)
        q.assert_margins_untouched()


@each_dtype
def test_samples_against_the_reference(dtype: torch.dtype, device: torch.device):
    chosen = [sample for sample in samples.masked_group_quant_fp8(device) if sample["input"].dtype == dtype]
    assert chosen
    for sample in chosen:
        sample["output_q"].view(torch.uint8).fill_(0x2A)
        expected = {**sample, "output_q": sample["output_q"].clone(), "output_s": sample["output_s"].clone()}
        family.masked_group_quant_fp8(**sample)
        reference.masked_group_quant_fp8(**expected)
        for name in ("output_q", "output_s"):
            assert_same_bytes(sample[name], expected[name])


def test_the_rows_that_are_counted_are_those_of_the_op_for_all(device: torch.device):
    x = random(3, 9, 640, dtype=torch.bfloat16, device=device)
    q, scales = torch.empty(x.shape, dtype=FP8, device=device), torch.empty(3, 9, 5, device=device)
    family.masked_group_quant_fp8(x, q, scales, torch.full((3,), 9, dtype=torch.int32, device=device), eps=0.25)
    all_q, all_scales = torch.empty(27, 640, dtype=FP8, device=device), torch.empty(27, 5, device=device)
    family.per_token_group_quant_fp8(x.view(27, 640), all_q, all_scales, eps=0.25)
    assert_same_bytes(q, all_q)
    assert_same_bytes(scales, all_scales)


def test_the_scales_of_experts_lie_as_deepgemm_takes_them(device: torch.device):
    for experts, tokens, hidden in ((2, 1, 128), (3, 5, 7168), (1, 8, 640)):
        padded = -(-tokens // 4) * 4
        scales = column_major_scales(tokens, hidden // 128, device, experts=experts)
        packed = packed_scales(tokens, hidden, device, experts=experts)
        for tensor, columns in ((scales, hidden // 128), (packed, -(-hidden // 512))):
            assert tensor.shape == (experts, tokens, columns)
            assert tensor.stride() == (columns * padded, 1, padded)


def good_call(device: torch.device) -> dict[str, torch.Tensor]:
    return {
        "input": torch.ones(2, 3, 256, device=device),
        "output_q": torch.zeros(2, 3, 256, device=device).to(FP8),
        "output_s": torch.zeros(2, 3, 2, device=device),
        "counts": torch.tensor([3, 1], dtype=torch.int32, device=device),
    }


BAD = {
    "dimensions of input": ({"input": torch.zeros(3, 256)}, "input", "expected 3 but got 2"),
    "dtype of input": ({"input": torch.zeros(2, 3, 256).int()}, "input", "float16, bfloat16] but got int32"),
    "dtype of output_q": ({"output_q": torch.zeros(2, 3, 256)}, "output_q", "expected float8_e4m3fn but got float32"),
    "experts of output_q": ({"output_q": torch.zeros(3, 3, 256).to(FP8)}, "output_q", "rows: expected 2 but got 3"),
    "tokens of output_q": ({"output_q": torch.zeros(2, 4, 256).to(FP8)}, "output_q", "expected 3 but got 4"),
    "size of output_q": ({"output_q": torch.zeros(2, 3, 384).to(FP8)}, "output_q", "a row: expected 256 but got 384"),
    "dtype of output_s": ({"output_s": torch.zeros(2, 3, 2).half()}, "output_s", "expected float32 but got float16"),
    "tokens of output_s": ({"output_s": torch.zeros(2, 4, 2)}, "output_s", "expected 3 but got 4"),
    "groups": ({"output_s": torch.zeros(2, 3, 3)}, "output_s", "a row: expected 2 but got 3"),
    "dimensions of output_s": ({"output_s": torch.zeros(6, 2)}, "output_s", "expected 3 but got 2"),
    "strides of output_s": (
        {"output_s": torch.zeros(2, 3, 2, 2)[..., 0]},
        "output_s",
        "expected a stride of 1 for dimension 1 or 2, but got 4 and 2",
    ),
    "part of a group": (
        {"input": torch.zeros(2, 3, 200), "output_q": torch.zeros(2, 3, 200).to(FP8)},
        "input",
        "expected whole groups of 128 but got 200",
    ),
    "dtype of counts": ({"counts": torch.tensor([3, 1])}, "counts", "expected int32 but got int64"),
    "number of counts": ({"counts": torch.tensor([3]).int()}, "counts", "expected 2 elements but got 1"),
    "dimensions of counts": ({"counts": torch.zeros(2, 1).int()}, "counts", "expected 1 but got 2"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_match_is_refused_with_the_cause(case: str, device: torch.device):
    change, name, text = BAD[case]
    call = good_call(device) | {key: value.to(device) for key, value in change.items()}
    if case == "strides of output_s":
        call["output_s"] = torch.zeros(2, 3, 2, 2, device=device)[..., 0]
    with pytest.raises(
        TensorMatchError, match=rf"(?s)^\w+\(\): Tensor match failed for {name}, Tensor<.*{re.escape(text)}"
    ):
        family.masked_group_quant_fp8(**call)


@pytest.mark.parametrize("count", [-1, 4])
def test_a_count_out_of_range_is_refused_on_the_cpu(count: int):
    call = good_call(torch.device("cpu")) | {"counts": torch.tensor([3, count], dtype=torch.int32)}
    with pytest.raises(TensorMatchError, match=f"element 1 is {count}, and input has 3 rows for each"):
        family.masked_group_quant_fp8(**call)
    assert not call["output_s"].any()


@pytest.mark.gpu
def test_a_count_out_of_range_is_bounded_on_cuda():
    device = torch.device("cuda", torch.cuda.current_device())
    call = good_call(device) | {"counts": torch.tensor([4, -1], dtype=torch.int32, device=device)}
    family.masked_group_quant_fp8(**call)
    assert (call["output_s"][0] > 0).all()
    assert not call["output_s"][1].any()


def test_options_that_do_not_fit(device: torch.device):
    with pytest.raises(ValueError, match="masked_group_quant_fp8: eps must be at least 0, got -1"):
        family.masked_group_quant_fp8(**good_call(device), eps=-1.0)
    words = torch.zeros(2, 3, 1, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match=r"masked_group_quant_fp8: output_s of int32 .* so it needs scale_ue8m0=True$"):
        family.masked_group_quant_fp8(**good_call(device) | {"output_s": words})
    words = torch.zeros(2, 3, 2, dtype=torch.int32, device=device)
    with pytest.raises(TensorMatchError, match=r"(?s)output_s, .*expected \[2, 3, 1\], a word for each 512 elements"):
        family.masked_group_quant_fp8(**good_call(device) | {"output_s": words}, scale_ue8m0=True)


def test_arguments_that_share_memory(device: torch.device):
    call = good_call(device)
    memory = torch.zeros(2, 3, 2, device=device)
    for change in (
        {"output_s": call["input"][:, :, :2]},
        {"output_s": memory[:1].expand(2, 3, 2)},
        {"output_s": memory[:, :1].expand(2, 3, 2)},
        {"output_q": call["output_q"][:1].expand(2, 3, 256)},
        {"output_s": memory, "counts": memory.view(torch.int32).view(-1)[:2]},
    ):
        with pytest.raises(ValueError, match=r"shares? memory with"):
            family.masked_group_quant_fp8(**call | change)
    in_columns = torch.zeros(2, 2, 3, device=device).mT
    family.masked_group_quant_fp8(**call | {"output_s": in_columns})
    assert in_columns.any()
