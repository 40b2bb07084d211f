"""Int8 out, and exponents packed into words, on both devices: byte by byte as the reference."""

from __future__ import annotations

import math
import re

import pytest
import torch

from sgljit_core.errors import TensorMatchError
from sgljit_quant import packed_scales, reference, samples

from .helpers import DTYPES, FP8, Guarded, assert_same_bytes, family, random

each_dtype = pytest.mark.parametrize(
    "dtype", [x if x is torch.bfloat16 else pytest.param(x, marks=pytest.mark.slow) for x in DTYPES], ids=str
)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device  # "cuda" with its index


@each_dtype
@pytest.mark.parametrize("size", [16, 128, 7])
def test_int8_of_any_group(size: int, dtype: torch.dtype, device: torch.device):
    for tokens, groups in ((0, 4), (1, 1), (3, 5), (33, 56)):
        x = random(tokens, groups * size, dtype=dtype, device=device)
        q, s = Guarded(x.shape, torch.int8, device, gap=3), Guarded((tokens, groups), torch.float32, device)
        expected_q, expected_s = torch.empty_like(x, dtype=torch.int8), x.new_empty(tokens, groups).float()
        family.per_token_group_quant_int8(x, q.tensor, s.tensor, size)
        reference.per_token_group_quant_int8(x, expected_q, expected_s, size)
        assert_same_bytes(q.tensor, expected_q)
        assert_same_bytes(s.tensor, expected_s)
        q.assert_margins_untouched()
        s.assert_margins_untouched()


@pytest.mark.parametrize("op", ["per_token_quant_int8", "per_token_group_quant_int8", "per_token_group_quant_fp8"])
@each_dtype
def test_samples_against_the_reference(op: str, dtype: torch.dtype, device: torch.device):
    chosen = [sample for sample in getattr(samples, op)(device) if sample["input"].dtype == dtype]
    assert chosen
    for sample in chosen:
        expected = {**sample, "output_q": sample["output_q"].clone(), "output_s": sample["output_s"].clone()}
        getattr(family, op)(**sample)
        getattr(reference, op)(**expected)
        for name in ("output_q", "output_s"):
            assert_same_bytes(sample[name], expected[name])


@each_dtype
@pytest.mark.parametrize("offset", [0, 1])
def test_a_number_becomes_the_nearest_integer_the_even_one_of_two(
    offset: int, dtype: torch.dtype, device: torch.device
):
    """The scale is 1: 127 is the largest magnitude. Whole loads and, one element further, parts of them."""
    halves = torch.arange(-127, 127.5, 0.5, device=device)
    row = torch.cat([halves, torch.full((128 - halves.numel() % 128,), 0.25, device=device)]).to(dtype)
    x = torch.zeros(row.numel() + offset, dtype=dtype, device=device)[offset:].copy_(row)[None]
    q, s = torch.full(x.shape, 99, dtype=torch.int8, device=device), torch.empty(1, device=device)
    family.per_token_quant_int8(x, q, s)
    assert s.item() == 1
    assert torch.equal(q, x.float().round().to(torch.int8))  # torch rounds half to even


@each_dtype
def test_zeros_nan_and_infinity_stay_in_their_group(dtype: torch.dtype, device: torch.device):
    x = torch.ones(1, 4 * 16, device=device, dtype=dtype)
    x[0, :16] = 0
    x[0, 16], x[0, 17] = math.nan, -127
    x[0, 32], x[0, 33] = math.inf, -math.inf
    q, s = torch.full(x.shape, 99, dtype=torch.int8, device=device), torch.empty(1, 4, device=device)
    family.per_token_group_quant_int8(x, q, s, 16)
    assert q[0, :16].tolist() == [0] * 16
    assert q[0, 16:19].tolist() == [0, -127, 1]
    assert q[0, 32:35].tolist() == [127, -128, 0]
    assert q[0, 48:].tolist() == [127] * 16
    assert s[0].tolist() == pytest.approx([1e-10 / 127, 1, torch.finfo(torch.float32).max, 1 / 127], rel=1e-6)


def test_a_value_is_within_half_a_step_of_the_exact_quotient(device: torch.device):
    x = random(64, 512, dtype=torch.float32, device=device)
    q, s = torch.empty(x.shape, dtype=torch.int8, device=device), torch.empty(64, 4, device=device)
    family.per_token_group_quant_int8(x, q, s)
    groups, scale = x.double().unflatten(1, (4, 128)), s.double()[..., None]
    error = (q.double().view(groups.shape) * scale - groups).abs()
    assert (error <= scale / 2 * (1 + 1e-5)).all()
    assert q.abs().amax() == 127


def in_bytes(words: torch.Tensor) -> torch.Tensor:
    return (words[..., None] >> torch.arange(0, 32, 8, device=words.device) & 0xFF).flatten(1)


@each_dtype
@pytest.mark.parametrize("groups", [1, 3, 4, 5, 14, 56])
def test_packed_exponents_are_those_of_the_scales_in_float32(groups: int, dtype: torch.dtype, device: torch.device):
    for tokens in (0, 1, 3, 33):
        x = random(tokens, groups * 128, dtype=dtype, device=device) * 37
        q, expected_q = (torch.empty(x.shape, dtype=FP8, device=device) for _ in range(2))
        expected = torch.empty(tokens, groups, device=device)
        family.per_token_group_quant_fp8(x, expected_q, expected, scale_ue8m0=True)
        in_rows = torch.full((tokens, -(-groups // 4)), 0x55555555, dtype=torch.int32, device=device)
        for packed in (in_rows, packed_scales(tokens, groups * 128, device)):
            before = in_bytes(packed)
            family.per_token_group_quant_fp8(x, q, packed, scale_ue8m0=True)
            found = in_bytes(packed)
            assert torch.equal(found[:, :groups].double().sub(127).exp2(), expected.double())
            assert torch.equal(found[:, groups:], before[:, groups:])
            assert_same_bytes(q, expected_q)


def test_each_exponent_has_its_exact_inverse(device: torch.device):
    powers = torch.arange(-126, 120, dtype=torch.float64, device=device)
    x = torch.zeros(247, 512, device=device)
    x[:-1, 0], x[:-1, 1] = 448 * 2**powers, 240 * 2**powers
    x[-1, 0], x[-1, 1] = math.inf, torch.finfo(torch.float32).max  # by 2^127, whose inverse is no normal number
    q, packed = torch.zeros(x.shape, dtype=FP8, device=device), packed_scales(247, 512, device)
    family.per_token_group_quant_fp8(x, q, packed, eps=0.0, scale_ue8m0=True)
    exponents = in_bytes(packed)[:, 0]
    assert torch.equal(exponents[:-1].double(), powers + 127)
    assert (q.float()[:-1, :2] == torch.tensor([448.0, 240.0], device=device)).all()
    assert exponents[-1] == 254
    assert q.float()[-1, :2].tolist() == [448, 2]


def test_packed_scales_lie_as_deepgemm_takes_them(device: torch.device):
    for tokens, hidden in ((0, 512), (1, 128), (5, 7168), (8, 640)):
        packed = packed_scales(tokens, hidden, device)
        assert packed.shape == (tokens, -(-hidden // 512))
        assert packed.stride() == (1, max(1, -(-tokens // 4) * 4))
        if hidden % 512:
            assert (packed == 0).all()


BAD = {
    "dtype of output_q": ({"output_q": torch.zeros(3, 256).to(FP8)}, "output_q", "expected int8 but got float8_e4m3fn"),
    "words for scales": ({"output_s": torch.zeros(3, 1).int()}, "output_s", "expected float32 but got int32"),
    "groups": ({"output_s": torch.zeros(3, 3)}, "output_s", "expected 2 but got 3"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_int8_does_not_match_is_refused_with_the_cause(case: str, device: torch.device):
    change, name, text = BAD[case]
    good = {"input": torch.ones(3, 256), "output_q": torch.zeros(3, 256).to(torch.int8), "output_s": torch.zeros(3, 2)}
    call = {key: value.to(device) for key, value in (good | change).items()}
    with pytest.raises(
        TensorMatchError, match=rf"(?s)^\w+\(\): Tensor match failed for {name}, Tensor<.*{re.escape(text)}"
    ):
        family.per_token_group_quant_int8(**call)


def test_an_int8_output_of_rows_must_be_int8(device: torch.device):
    x, s = torch.ones(3, 256, device=device), torch.zeros(3, device=device)
    with pytest.raises(TensorMatchError, match="per_token_quant_int8: output_q must be int8, got float8_e4m3fn"):
        family.per_token_quant_int8(x, torch.zeros(3, 256, device=device).to(FP8), s)


def test_words_for_exponents_need_their_size_and_groups(device: torch.device):
    x, q = torch.ones(3, 640, device=device), torch.zeros(3, 640, device=device).to(FP8)
    words = torch.zeros(3, 2, dtype=torch.int32, device=device)
    for options in ({}, {"scale_ue8m0": True, "group_size": 64}):
        with pytest.raises(ValueError, match="holds exponents of groups of 128, so it needs group_size=128 and scale_"):
            family.per_token_group_quant_fp8(x, q, words, **options)
    for wrong in (words[:2], words[:, :1], torch.zeros(3, 5, dtype=torch.int32, device=device)):
        with pytest.raises(TensorMatchError, match=r"expected \[3, 2\], a word for each 512 elements"):
            family.per_token_group_quant_fp8(x, q, wrong, scale_ue8m0=True)
    with pytest.raises(TensorMatchError, match="of whole groups of 128; input has 600"):
        family.per_token_group_quant_fp8(x[:, :600], q[:, :600], words, scale_ue8m0=True)
    with pytest.raises(ValueError, match="share memory with each other or with other rows of"):
        family.per_token_group_quant_fp8(x, q, words[:1].expand(3, 2), scale_ue8m0=True)
