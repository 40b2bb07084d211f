"""Quantisation on the CPU: values."""

from __future__ import annotations

import math

import pytest
import torch

from sgljit_quant import reference, samples

from .helpers import DTYPES, FP8, assert_same_bytes, check, check_per_tensor, check_per_token, family, random

each_dtype = pytest.mark.parametrize(
    "dtype", [x if x is torch.bfloat16 else pytest.param(x, marks=pytest.mark.slow) for x in DTYPES], ids=str
)


@each_dtype
@pytest.mark.parametrize("columns", [1, 2, 7, 31, 64, 65, 1000, 4096, 16384, 100_003])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_any_size(rows: int, columns: int, dtype: torch.dtype):
    check(random(rows, columns, dtype=dtype))


@each_dtype
@pytest.mark.parametrize("shape", [(4097, 256), (300_000, 2), (1, 1_000_003)])
def test_enough_for_every_thread(shape: tuple[int, int], dtype: torch.dtype):
    check(random(*shape, dtype=dtype))


@pytest.mark.parametrize("shape", [(7,), (2, 3, 5), (2, 1, 3, 1, 4), (1, 1, 1)])
def test_any_rank(shape: tuple[int, ...]):
    check(random(*shape, dtype=torch.bfloat16))


def test_a_tensor_without_dimensions_is_one_element():
    check_per_tensor(torch.tensor(-3.0))


@pytest.mark.parametrize("name", ["per_tensor_quant_fp8", "per_token_quant_fp8"])
@each_dtype
def test_samples_against_the_reference(name: str, dtype: torch.dtype):
    chosen = [sample for sample in getattr(samples, name)(torch.device("cpu")) if sample["input"].dtype == dtype]
    assert chosen
    for sample in chosen:
        x, q, s, *rest = sample.values()
        expected_q, expected_s = torch.empty_like(q), s.clone()
        q.view(torch.uint8).fill_(0x2A)
        getattr(family, name)(x, q, s, *rest)
        getattr(reference, name)(x, expected_q, expected_s, *rest)
        assert_same_bytes(q, expected_q)
        assert_same_bytes(s, expected_s)


@each_dtype
@pytest.mark.parametrize("gap", [0, 3, 16])
def test_rows_may_be_apart(gap: int, dtype: torch.dtype):
    buffer = random(13, 3 * 80, dtype=dtype)
    check(buffer[:, 80:160], gap)
    check(buffer[::2, 1:81], gap)
    check(buffer[:1].expand(5, -1), gap)
    check(buffer.view(13, 3, 80)[:, 1:2], gap)
    check(buffer.view(13, 3, 80)[:, 1], gap, offset=5)
    check(random(12, 80, dtype=dtype).view(3, 4, 80), gap)


def test_the_scales_may_have_the_shape_of_the_rows():
    x = random(3, 5, 64, dtype=torch.float32)
    q, scales = torch.empty(x.shape, dtype=FP8), [torch.empty(3, 5), torch.empty(3, 5, 1)]
    for s in scales:
        family.per_token_quant_fp8(x, q, s)
    assert torch.equal(scales[0], scales[1][..., 0])


def test_the_one_scale_may_have_any_number_of_dimensions():
    x, q = torch.full((4,), 448.0), torch.empty(4, dtype=FP8)
    for s in (torch.empty(()), torch.empty(1), torch.empty(1, 1)):
        family.per_tensor_quant_fp8(x, q, s)
        assert s.item() == 1


def nearest_e4m3(values: torch.Tensor) -> torch.Tensor:
    """From the definition of the format: the nearest of its 127 magnitudes; of two, the one with an even byte."""
    table = [
        math.ldexp(mantissa, -9) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 10)
        for exponent in range(16)
        for mantissa in range(8)
    ][:127]
    magnitudes = torch.tensor(table, dtype=torch.float64)
    x = values.double()
    above = torch.searchsorted(magnitudes, x.abs().clamp(max=448.0)).clamp(max=126)
    below = (above - 1).clamp(min=0)
    to_above, to_below = magnitudes[above] - x.abs().clamp(max=448.0), x.abs().clamp(max=448.0) - magnitudes[below]
    take_above = (to_above < to_below) | ((to_above == to_below) & (above % 2 == 0))
    byte = torch.where(take_above, above, below) | (torch.signbit(x).long() << 7)
    return torch.where(x.isnan(), 0x7F, byte).to(torch.uint8)


def quantized(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    q = torch.empty(x.shape, dtype=FP8)
    family.per_tensor_quant_fp8(x, q, torch.tensor([scale]), True)
    return q.view(torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_half_becomes_the_nearest_e4m3(dtype: torch.dtype):
    x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    assert torch.equal(quantized(x), nearest_e4m3(x))


def test_floats_around_every_e4m3_and_every_tie():
    values = torch.arange(127, dtype=torch.uint8).view(FP8).double()
    middles = torch.cat([values, (values[:-1] + values[1:]) / 2, torch.tensor([464.0, 480.0, 1e38])]).float()
    infinity = torch.tensor(math.inf)
    x = torch.cat([middles, middles.nextafter(infinity), middles.nextafter(-infinity)])
    x = torch.cat([x, -x])
    assert torch.equal(quantized(x), nearest_e4m3(x))


@each_dtype
def test_the_largest_magnitude_becomes_448(dtype: torch.dtype):
    x = torch.tensor([[1.0, -3.5, 2.0], [0.1, 0.2, -0.4]], dtype=dtype)
    q, s = torch.empty(2, 3, dtype=FP8), torch.empty(2, 1)
    family.per_token_quant_fp8(x, q, s)
    assert q.float().abs().amax(1).tolist() == [448, 448]
    family.per_tensor_quant_fp8(x, q, s[:1])
    assert s[0].item() == 3.5 / 448
    assert q[0].tolist() == [128, -448, 256]


@each_dtype
def test_zeros_stay_zero_and_their_scale_is_not_zero(dtype: torch.dtype):
    x = torch.zeros(2, 100, dtype=dtype)
    x[1] = -0.0
    q, s = torch.empty(2, 100, dtype=FP8), torch.zeros(2)
    family.per_token_quant_fp8(x, q, s)
    assert s.tolist() == [2.0**-126] * 2
    assert q.view(torch.uint8)[:, 0].tolist() == [0, 0x80]
    check(x)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_no_element_has_the_scale_of_zeros(device: str):
    x, q = torch.empty(2, 0, device=device), torch.empty(2, 0, dtype=FP8, device=device)
    s = torch.full((2,), 7.0, device=device)
    family.per_token_quant_fp8(x, q, s)
    assert s.tolist() == [2.0**-126] * 2
    family.per_tensor_quant_fp8(x, q, s[:1].fill_(7))
    assert s[0].item() == 2.0**-126
    family.per_tensor_quant_fp8(x, q, s[:1].fill_(7), True)
    assert s[0].item() == 7


@pytest.mark.parametrize("magnitude", [1e-45, 1e-40, 1e-37, 1e-12, 1e4, 1e30, 3e38])
def test_magnitudes(magnitude: float):
    check(torch.randn(3, 500) * magnitude)
    check(torch.tensor([[magnitude, -magnitude, 0.0, magnitude / 2]]))


def test_one_outlier():
    x = random(3, 4096, dtype=torch.float32)
    x[:, 17] = 1e6
    check(x)


@each_dtype
def test_nan_stays_where_it_is(dtype: torch.dtype):
    clean = random(2, 100, dtype=dtype)
    x = clean.clone()
    x[1, 5], x[1, 6] = math.nan, -math.nan
    q, s = torch.empty(x.shape, dtype=FP8), torch.empty(2)
    family.per_token_quant_fp8(x, q, s)
    assert q.view(torch.uint8)[1, 5:7].tolist() == [0x7F, 0x7F]
    assert q.float().isnan().sum() == 2
    assert s[0] == clean[0].float().abs().max() / 448
    check(x)
    check(torch.full((2, 9), math.nan, dtype=dtype))


@each_dtype
def test_infinity_saturates_and_comes_back_as_infinity(dtype: torch.dtype):
    x = random(2, 100, dtype=dtype)
    x[1, 5], x[1, 6], x[1, 7] = math.inf, -math.inf, math.nan
    q, s = torch.empty(x.shape, dtype=FP8), torch.empty(2, 1)
    family.per_token_quant_fp8(x, q, s)
    assert (q.float() * s)[1, 5:7].tolist() == [math.inf, -math.inf]
    assert (q.float()[1, 8:] == 0).all()
    assert (q.float() * s).isnan().sum() == 1
    check(x)


@pytest.mark.parametrize("scale", [0.0, -0.5, math.inf, math.nan, 1e-45, 3e38])
def test_any_given_scale_is_taken_as_float32_takes_it(scale: float):
    x = random(3, 100, dtype=torch.float32)
    x[0, 0] = 0
    if not math.isnan(scale):
        check_given(x, scale)
    else:
        assert (quantized(x, scale) == 0x7F).all()


def check_given(x: torch.Tensor, scale: float) -> None:
    expected = torch.empty(x.shape, dtype=FP8)
    reference.per_tensor_quant_fp8(x, expected, torch.tensor([scale]), True)
    assert torch.equal(quantized(x, scale), expected.view(torch.uint8))


def test_the_reference_is_accurate():
    """Against float64: half a step of e4m3, relative or of its smallest magnitudes."""
    x = random(64, 512, dtype=torch.float32)
    q, s = torch.empty(x.shape, dtype=FP8), torch.empty(64, 1)
    reference.per_token_quant_fp8(x, q, s)
    error = (q.double() * s.double() - x.double()).abs()
    assert (error <= (x.double().abs() / 16 + s.double() * 2**-10) * (1 + 1e-6)).all()


def test_random_shapes():
    torch.manual_seed(0)
    for _ in range(100):
        rows, columns = torch.randint(1, 40, ()).item(), torch.randint(1, 600, ()).item()
        dtype = DTYPES[torch.randint(0, 3, ()).item()]
        x = torch.randn(rows, columns + 5)[:, 2 : 2 + columns].to(dtype)
        check_per_tensor(x, gap=torch.randint(0, 20, ()).item())
        check_per_token(x)


def test_torch_compile():
    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, s = torch.empty(x.shape, dtype=FP8), torch.empty(1)
        family.per_tensor_quant_fp8(x, q, s)
        t = torch.empty(x.shape[0])
        family.per_token_quant_fp8(x, q, t)
        return q.float() * t[:, None], s + 1

    x = random(3, 64, dtype=torch.bfloat16)
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    for got, expected in zip(compiled(x), both(x), strict=True):
        assert torch.equal(got, expected)
