"""A scale for each group, on both devices: byte by byte as the reference, which is within half a step of float64."""

from __future__ import annotations

import math
import re

import pytest
import torch

from sgljit_core.errors import TensorMatchError
from sgljit_quant import column_major_scales, reference, samples

from .helpers import DTYPES, FP8, Guarded, assert_same_bytes, family, random

each_dtype = pytest.mark.parametrize(
    "dtype", [x if x is torch.bfloat16 else pytest.param(x, marks=pytest.mark.slow) for x in DTYPES], ids=str
)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device  # "cuda" with its index


def check(x: torch.Tensor, size: int = 128, gap: int = 0, offset: int = 16, **options: float | bool) -> torch.Tensor:
    """Quantises with guard zones around the outputs, and returns the scales."""
    tokens, groups = x.shape[0], x.shape[1] // size
    q = Guarded(x.shape, FP8, x.device, gap, offset)
    expected_q, expected_s = torch.empty(x.shape, dtype=FP8, device=x.device), x.new_empty(tokens, groups).float()
    before = x.clone()
    reference.per_token_group_quant_fp8(x, expected_q, expected_s, size, **options)
    in_rows, in_columns = (
        Guarded((tokens, groups), torch.float32, x.device),
        Guarded((groups, tokens), torch.float32, x.device, gap=3),
    )
    for scales in (in_rows.tensor, in_columns.tensor.t()):
        family.per_token_group_quant_fp8(x, q.tensor, scales, size, **options)
        assert_same_bytes(scales, expected_s)
        assert_same_bytes(q.tensor, expected_q)
    for guarded in (q, in_rows, in_columns):
        guarded.assert_margins_untouched()
    assert_same_bytes(x, before)
    return expected_s


@each_dtype
@pytest.mark.parametrize("size", [16, 32, 64, 128, 256, 7])
def test_any_size(size: int, dtype: torch.dtype, device: torch.device):
    for tokens, groups in ((0, 4), (1, 1), (3, 5), (33, 56), (3, 0)):
        x = random(tokens, groups * size, dtype=dtype, device=device)
        check(x, size)
        check(x, size, scale_ue8m0=True)


@each_dtype
def test_rows_may_be_apart_and_begin_anywhere(dtype: torch.dtype, device: torch.device):
    buffer = random(13, 1000, dtype=dtype, device=device)
    for first, gap, offset in ((0, 0, 16), (8, 16, 16), (1, 0, 16), (3, 5, 5)):
        check(buffer[:, first : first + 768], 128, gap, offset)
        check(buffer[::2, first : first + 768], 64, gap, offset)


def test_enough_for_every_thread(device: torch.device):
    check(random(2049, 1024, dtype=torch.bfloat16, device=device))


@each_dtype
def test_samples_against_the_reference(dtype: torch.dtype, device: torch.device):
    chosen = [sample for sample in samples.per_token_group_quant_fp8(device) if sample["input"].dtype == dtype]
    assert chosen
    for sample in chosen:
        expected = {**sample, "output_q": sample["output_q"].clone(), "output_s": sample["output_s"].clone()}
        family.per_token_group_quant_fp8(**sample)
        reference.per_token_group_quant_fp8(**expected)
        for name in ("output_q", "output_s"):
            assert_same_bytes(sample[name], expected[name])


@pytest.mark.parametrize("scale_ue8m0", [False, True])
def test_a_value_is_within_half_a_step_of_the_exact_quotient(scale_ue8m0: bool, device: torch.device):
    x = random(64, 512, dtype=torch.float32, device=device)
    q, s = torch.empty(x.shape, dtype=FP8, device=device), torch.empty(64, 4, device=device)
    family.per_token_group_quant_fp8(x, q, s, scale_ue8m0=scale_ue8m0)
    groups, scale = x.double().unflatten(1, (4, 128)), s.double()[..., None]
    exact = groups.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
    if scale_ue8m0:
        assert torch.equal(scale, torch.exp2(torch.log2(exact).ceil()))
    else:
        assert ((scale - exact).abs() <= exact * 2**-24).all()
    error = (q.double().view(groups.shape) * scale - groups).abs()
    assert (error <= (groups.abs() / 16 + scale * 2**-10) * (1 + 1e-6)).all()


def test_a_power_of_two_stays_and_what_is_above_is_rounded_up(device: torch.device):
    exact = torch.tensor([1.0, 2.0, 0.25]).repeat_interleave(2)
    exact[1::2] = exact[1::2].nextafter(torch.tensor(math.inf))
    x = torch.zeros(1, 6 * 16, device=device)
    x[0, ::16] = exact.to(device) * 448
    assert check(x, 16, scale_ue8m0=True).tolist() == [[1, 2, 2, 4, 0.25, 0.5]]


@each_dtype
def test_zeros_nan_and_infinity_stay_in_their_group(dtype: torch.dtype, device: torch.device):
    x = torch.ones(1, 6 * 16, device=device, dtype=dtype)
    x[0, 16:32] = 0
    x[0, 32], x[0, 33] = math.nan, 448
    x[0, 48:64] = math.nan
    x[0, 64], x[0, 65] = math.inf, -math.inf
    scales = check(x, 16)[0].tolist()
    smallest = (torch.tensor(1e-10) / 448).item()
    largest = torch.finfo(torch.float32).max
    assert scales == pytest.approx([1 / 448, smallest, 1, smallest, largest, 1 / 448], rel=1e-6)
    assert check(x, 16, scale_ue8m0=True)[0, 4] == 2.0**127
    q = torch.empty(x.shape, dtype=FP8, device=device)
    family.per_token_group_quant_fp8(x, q, torch.empty(1, 6, device=device), 16)
    assert q.float()[0, 64:67].tolist() == [448, -448, 0]
    assert q.float().isnan().sum() == 17


@pytest.mark.parametrize("eps", [0.0, 1e-10, 1.0, 1e38])
def test_eps_is_the_least_magnitude(eps: float, device: torch.device):
    x = torch.zeros(2, 32, device=device)
    x[1] = 0.5
    scales = check(x, 32, eps=eps)
    assert scales[0, 0].item() == max((torch.tensor(eps) / 448).item(), 2.0**-126)


def test_column_major_scales_begin_at_whole_words(device: torch.device):
    for tokens in (0, 1, 4, 5):
        scales = column_major_scales(tokens, 3, device)
        assert scales.shape == (tokens, 3)
        assert scales.stride() == (1, max(1, -(-tokens // 4) * 4))
        x, q = torch.ones(tokens, 384, device=device), torch.empty(tokens, 384, dtype=FP8, device=device)
        family.per_token_group_quant_fp8(x, q, scales)
        assert torch.equal(scales, torch.full_like(scales, 1 / 448))


BAD = {
    "dtype of input": ({"input": torch.zeros(3, 256).int()}, "input", "float16, bfloat16] but got int32"),
    "FP8 as input": ({"input": torch.zeros(3, 256).to(FP8)}, "input", "float16, bfloat16] but got float8_e4m3fn"),
    "dtype of output_q": ({"output_q": torch.zeros(3, 256)}, "output_q", "expected float8_e4m3fn but got float32"),
    "dtype of output_s": ({"output_s": torch.zeros(3, 2).half()}, "output_s", "expected float32 but got float16"),
    "rows of output_q": ({"output_q": torch.zeros(2, 256).to(FP8)}, "output_q", "expected 3 but got 2"),
    "size of output_q": ({"output_q": torch.zeros(3, 384).to(FP8)}, "output_q", "expected 2 but got 3"),
    "input without elements": ({"input": torch.zeros(3, 0)}, "output_q", "expected 0 but got 2"),
    "rows of output_s": ({"output_s": torch.zeros(4, 2)}, "output_s", "the number of rows: expected 3 but got 4"),
    "groups": ({"output_s": torch.zeros(3, 3)}, "output_s", "expected 2 but got 3"),
    "dimensions of output_s": ({"output_s": torch.zeros(3)}, "output_s", "expected 2 but got 1"),
    "part of a group": ({"group_size": 96}, "input", "expected whole groups of 96 but got 256"),
}


def good_call(device: torch.device) -> dict[str, torch.Tensor]:
    return {
        "input": torch.ones(3, 256, device=device),
        "output_q": torch.zeros(3, 256, device=device).to(FP8),
        "output_s": torch.zeros(3, 2, device=device),
    }


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_match_is_refused_with_the_cause(case: str, device: torch.device):
    change, name, text = BAD[case]
    call = good_call(device) | {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in change.items()}
    with pytest.raises(
        TensorMatchError, match=rf"(?s)^\w+\(\): Tensor match failed for {name}, Tensor<.*{re.escape(text)}"
    ):
        family.per_token_group_quant_fp8(**call)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"group_size": 0}, "the size of a group must be positive, got 0"),
        ({"eps": -1.0}, "per_token_group_quant_fp8: eps must be at least 0, got -1"),
        ({"eps": math.nan}, "per_token_group_quant_fp8: eps must be at least 0, got nan"),
    ],
)
def test_numbers_out_of_range(options: dict[str, float], text: str, device: torch.device):
    with pytest.raises(ValueError, match=text):
        family.per_token_group_quant_fp8(**good_call(device), **options)


def test_arguments_that_share_memory(device: torch.device):
    call = good_call(device)
    for change in (
        {"output_s": call["input"][:, :2]},
        {"output_s": torch.zeros(1, 2, device=device).expand(3, 2)},
        {"output_q": call["output_q"][:1].expand(3, 256)},
    ):
        with pytest.raises(ValueError, match="share memory with each other or with other rows of"):
            family.per_token_group_quant_fp8(**call | change)
