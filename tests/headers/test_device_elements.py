"""Casts, mathematics, vectors and tiles on the GPU, against PyTorch; casts bit for bit over every value."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.gpu

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
LARGEST = {F16: 65504.0, BF16: torch.finfo(BF16).max, E4M3: 448.0, E5M2: 57344.0, F32: torch.finfo(F32).max}
NAMES = {F32: "float32", F16: "float16", BF16: "bfloat16", E4M3: "e4m3", E5M2: "e5m2"}
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@pytest.fixture(scope="module")
def module(build):
    return build("elements.cu")


def every_value(dtype: torch.dtype) -> torch.Tensor:
    """All values of an 8- or 16-bit type; of fp32 those around every value of the narrower ones, and random bits."""
    if dtype.itemsize == 1:
        return torch.arange(256, dtype=torch.int16, device="cuda").to(torch.uint8).view(dtype)
    if dtype.itemsize == 2:
        return torch.arange(-(2**15), 2**15, dtype=torch.int32, device="cuda").to(torch.int16).view(dtype)
    narrow = torch.cat([every_value(d).float() for d in (F16, BF16, E4M3, E5M2)])
    narrow = narrow[narrow.isfinite()]
    bits = narrow.view(torch.int32)
    middles = (narrow.double() + torch.roll(narrow, 1).double()).div(2).float()  # ties, where neighbours are adjacent
    random = torch.randint(-(2**31), 2**31, (2**20,), device="cuda").to(torch.int32).view(F32)
    values = torch.cat([narrow, (bits + 1).view(F32), (bits - 1).view(F32), middles, random])
    return values[: len(values) // 4 * 4].contiguous()


def assert_same_bits(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal bit for bit; a NaN is equal to any NaN."""
    got_nan, wanted_nan = got.float().isnan(), wanted.float().isnan()
    assert torch.equal(got_nan, wanted_nan)
    bits = BITS[got.dtype.itemsize]
    different = (got.view(bits) != wanted.view(bits)) & ~got_nan
    assert not different.any(), (got[different][:5], wanted[different][:5])


def converted(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """PyTorch's conversion, with what goes beyond fp8 brought to its largest value, as device::cast says it does."""
    if dtype in (E4M3, E5M2):
        # Clamped in fp32, exactly. e4m3 and e5m2 of infinity: the largest value too.
        wide = values.float()
        values = torch.where(wide.isnan(), wide, wide.clamp(-LARGEST[dtype], LARGEST[dtype]))
    return values.to(dtype)


@pytest.mark.parametrize("pack", [1, 2])
@pytest.mark.parametrize("target", NAMES, ids=NAMES.get)
@pytest.mark.parametrize("source", NAMES, ids=NAMES.get)
def test_cast(module, source: torch.dtype, target: torch.dtype, pack: int) -> None:
    values = every_value(source)
    out = torch.zeros(len(values), dtype=F32, device="cuda").to(target)
    getattr(module, f"cast_{NAMES[source]}_{NAMES[target]}")(out, values, pack)
    # A cast to the same type changes nothing, NaN and infinity included.
    wanted = values if source == target else converted(values, target)
    assert_same_bits(out, wanted)


@pytest.mark.parametrize("pack", [1, 2])
@pytest.mark.parametrize(("name", "target"), [("int8", torch.int8), ("uint8", torch.uint8)])
def test_cast_between_floats_and_bytes(module, name: str, target: torch.dtype, pack: int) -> None:
    """To bytes: the nearest, the even one of two, saturated, and 0 for NaN."""
    limits = torch.iinfo(target)
    for source in NAMES:
        values = every_value(source)
        out = torch.full(values.shape, 99, dtype=target, device="cuda")
        getattr(module, f"cast_{NAMES[source]}_{name}")(out, values, pack)
        wanted = values.float().nan_to_num(nan=0.0).round().clamp(limits.min, limits.max).to(target)
        assert torch.equal(out, wanted), source
    values = torch.arange(limits.min, limits.max + 1, device="cuda").to(target)
    out = torch.full((256,), torch.nan, device="cuda")
    getattr(module, f"cast_{name}_float32")(out, values, pack)
    assert torch.equal(out, values.float())


@pytest.mark.parametrize("narrow", [E4M3, E5M2], ids=NAMES.get)
def test_cast_of_four(module, narrow: torch.dtype) -> None:
    values = every_value(narrow)
    out = torch.empty(256, device="cuda")
    getattr(module, f"cast4_{NAMES[narrow]}_float32")(out, values)
    assert_same_bits(out, values.float())
    wide = every_value(F32)
    out = torch.zeros(len(wide), device="cuda").to(narrow)
    getattr(module, f"cast4_float32_{NAMES[narrow]}")(out, wide)
    assert_same_bits(out, converted(wide, narrow))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_math_of_floats(module, dtype: torch.dtype) -> None:
    a = torch.cat([torch.linspace(-20, 20, 4001, device="cuda"), torch.randn(4095, device="cuda")]).to(dtype)
    b = torch.flip(a, (0,)).contiguous()
    out = torch.empty(8, len(a), dtype=dtype, device="cuda")
    getattr(module, f"math_{str(dtype).removeprefix('torch.')}")(out, a, b)
    wide = a.double()
    assert torch.equal(out[0], torch.maximum(a, b))
    assert torch.equal(out[1], torch.minimum(a, b))
    assert torch.equal(out[2], a.abs())
    functions = [torch.sqrt, torch.rsqrt, torch.exp, torch.sin, torch.cos]
    # fp32: a few ulp of CUDA's functions. The halves: computed in fp32, rounded once.
    rtol = {torch.float32: 1e-6, torch.float64: 1e-14, torch.float16: 2**-10, torch.bfloat16: 2**-7}[dtype]
    for row, function in zip(out[3:], functions, strict=True):
        wanted = function(wide)
        positive = wide > 0 if function in (torch.sqrt, torch.rsqrt) else torch.ones_like(wide, dtype=torch.bool)
        fits = positive & (wanted.abs() < torch.finfo(dtype).max)
        atol = max(rtol * 2e-1, 6e-8 if dtype == torch.float16 else 0.0) if dtype != torch.float64 else 1e-15
        torch.testing.assert_close(row[fits].double(), wanted[fits], rtol=rtol, atol=atol)


def test_maximum_of_nan_is_the_number(module) -> None:
    for dtype, suffix in ((F32, "float32"), (F16, "float16"), (BF16, "bfloat16"), (torch.float64, "float64")):
        a = torch.tensor([torch.nan, 1.0, torch.nan, -0.0], dtype=dtype, device="cuda")
        b = torch.tensor([2.0, torch.nan, torch.nan, 0.0], dtype=dtype, device="cuda")
        out = torch.empty(8, 4, dtype=dtype, device="cuda")
        getattr(module, f"math_{suffix}")(out, a, b)
        for row in out[:2]:
            assert row[:2].tolist() == [2.0, 1.0]
            assert row[2].isnan()
            assert row[3] == 0
        assert not torch.signbit(out[2][3])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_math_of_integers(module, dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    a = torch.randint(limits.min + 1, limits.max, (4096,), dtype=dtype, device="cuda")
    b = torch.flip(a, (0,)).contiguous()
    out = torch.empty(8, len(a), dtype=dtype, device="cuda")
    getattr(module, f"math_{str(dtype).removeprefix('torch.')}")(out, a, b)
    assert torch.equal(out[0], torch.maximum(a, b))
    assert torch.equal(out[1], torch.minimum(a, b))
    assert torch.equal(out[2], a.abs())


VECTORS = {
    "uint8": (torch.uint8, [1, 2, 4, 8, 16]),
    "e4m3": (E4M3, [1, 2]),
    "float16": (F16, [1, 2, 4, 8]),
    "bfloat16": (BF16, [1, 2]),
    "float32": (F32, [1, 2, 4]),
    "int64": (torch.int64, [1, 2]),
}


@pytest.mark.parametrize(("suffix", "width"), [(s, w) for s, (_, ws) in VECTORS.items() for w in [*ws, "max"]])
def test_vectors(module, suffix: str, width: int | str) -> None:
    dtype = VECTORS[suffix][0]
    major = torch.cuda.get_device_capability()[0]
    elements = (32 if major >= 10 else 16) // dtype.itemsize if width == "max" else int(width)
    raw = torch.randint(0, 256, (1000 * elements * dtype.itemsize,), device="cuda").to(torch.uint8)
    out = torch.zeros(len(raw) + elements * dtype.itemsize, dtype=torch.uint8, device="cuda")
    getattr(module, f"vector_{suffix}_{width}")(out.view(dtype), raw.view(dtype))
    wanted = raw.clone().view(1000, elements, dtype.itemsize)
    wanted[:, 0] = 0x11
    assert torch.equal(out[: len(raw)], wanted.flatten())
    assert (out[len(raw) :] == 0x11).all()


@pytest.mark.parametrize("threads", [32, 64, 256, 1024])
@pytest.mark.parametrize("n", [4, 32, 128, 4096, 10_000])
def test_tiles(module, n: int, threads: int) -> None:
    values = torch.randn(n, device="cuda")
    out = torch.full((3, n), torch.nan, device="cuda")
    module.tile(out, values, threads)
    assert torch.equal(out, values.expand(3, n))


def test_untyped_memory(module) -> None:
    values = torch.randint(-(2**15), 2**15, (1001,), device="cuda").to(torch.int16)
    out = torch.zeros_like(values)
    module.untyped(out, values)
    assert torch.equal(out[2:], values[2:])
    assert out[:2].tolist() == [0, 0]
