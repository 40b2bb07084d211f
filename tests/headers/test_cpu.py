"""sgl_kernel/cpu: conversions against PyTorch's, bit by bit; every item of a parallel loop is visited once."""

from __future__ import annotations

import os
import threading

import pytest
import torch


@pytest.fixture(scope="module")
def cpu(build):
    return build("cpu.cpp")


HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
# The versions of a loop, by the floats of a vector: the widest, AVX2 and the baseline.
VERSIONS = [0, 8, 4]
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32}


def has_avx2() -> bool:
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


@pytest.fixture(params=VERSIONS, ids=["widest", "avx2", "baseline"])
def version(request: pytest.FixtureRequest) -> int:
    if request.param == 8 and not has_avx2():
        pytest.skip("a processor without AVX2")
    return request.param


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(BITS[x.element_size()])


@pytest.mark.parametrize("name", HALVES)
def test_every_half_becomes_its_float(cpu, name: str, version: int) -> None:
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(HALVES[name])
    floats = torch.empty(halves.shape)
    getattr(cpu, f"{name}_to_float")(halves, floats, version)
    assert torch.equal(floats.isnan(), halves.isnan())
    kept = ~halves.isnan()
    assert torch.equal(bits(floats[kept]), bits(halves.float()[kept]))


def borders() -> torch.Tensor:
    """Every float whose lower bits are those that decide a rounding: below, at and above a tie, all ones."""
    upper = torch.arange(-(2**18), 2**18, dtype=torch.int64) << 13  # sign, exponent and ten bits of the mantissa
    lower = torch.tensor([0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF])
    return (upper[:, None] + lower).flatten().to(torch.int32).view(torch.float32)


@pytest.mark.parametrize("count", [2, 31, 32, 33, 2**16])
def test_halves_of_words_stay_as_they_are(cpu, count: int, version: int) -> None:
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)[:count].view(torch.bfloat16)
    got = torch.full((count + 1,), -1, dtype=torch.int16).view(torch.bfloat16)
    cpu.bf16_to_bf16(halves, got[:count], version)
    assert bits(got)[count] == -1
    assert torch.equal(got[:count].isnan(), halves.isnan())
    kept = ~halves.isnan()
    assert torch.equal(bits(got[:count][kept]), bits(halves[kept]))


@pytest.mark.parametrize("name", ["fp16", "bf16", "bf16_by_twos"])
def test_floats_round_as_in_pytorch(cpu, name: str, version: int) -> None:
    floats = borders()
    dtype = HALVES[name.removesuffix("_by_twos")]
    halves = torch.empty(floats.shape, dtype=dtype)
    getattr(cpu, f"float_to_{name}")(floats, halves, version)
    expected = floats.to(dtype)
    assert torch.equal(halves.isnan(), floats.isnan())
    kept = ~floats.isnan()
    assert torch.equal(bits(halves[kept]), bits(expected[kept]))


@pytest.mark.parametrize("by", ["", "_by_twos"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_floats_round_to_fp8_as_in_pytorch_but_saturate(cpu, dtype: torch.dtype, by: str, version: int) -> None:
    floats, largest = borders(), torch.finfo(dtype).max
    fp8 = torch.full(floats.shape, 1.0).to(dtype)
    name = "e5m2" if dtype == torch.float8_e5m2 else "e4m3"
    getattr(cpu, f"float_to_{name}{by}")(floats, fp8, version)
    assert torch.equal(fp8.float().isnan(), floats.isnan())
    kept = ~floats.isnan()
    assert torch.equal(bits(fp8[kept]), bits(floats[kept].clamp(-largest, largest).to(dtype)))


@pytest.mark.parametrize("count", [1, 31, 32, 33, 64, 100])
def test_each_version_gives_the_same_bits_of_fp16(cpu, count: int) -> None:
    """NaN too, with its payload; elements behind whole vectors are converted one by one, and nothing is behind them."""
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    versions = [version for version in VERSIONS if version != 8 or has_avx2()]
    for convert, x, dtype in (
        (cpu.fp16_to_float, halves[-900:][:count], torch.float32),  # NaN
        (cpu.fp16_to_float, halves, torch.float32),
        (cpu.float_to_fp16, borders()[-900:][:count], torch.float16),  # NaN
        (cpu.float_to_fp16, borders(), torch.float16),
    ):
        results = [torch.full((len(x) + 1,), 7, dtype=dtype) for _ in versions]
        for version, result in zip(versions, results, strict=True):
            convert(x, result[:-1], version)
        assert all(torch.equal(bits(results[0]), bits(result)) for result in results)
        assert results[0][-1] == 7


def test_lines_are_copied_past_the_caches(cpu, version: int) -> None:
    memory = torch.empty(64 * 30 + 63, dtype=torch.uint8)
    lines = memory[-memory.data_ptr() % 64 :][: 64 * 30].fill_(7).view(30, 64)
    x = torch.randint(256, (20 * 64 + 3,), dtype=torch.uint8)[3:].view(20, 64)  # from any address
    for count in (0, 1, 20):
        cpu.streamed(x[:count], lines[5:], version)
        assert torch.equal(lines[5 : 5 + count], x[:count])
        assert (lines[:5] == 7).all()
        assert (lines[5 + count :] == 7).all()


@pytest.mark.parametrize(
    ("name", "reference", "lowest", "highest", "ulp"),
    [
        ("exp", torch.exp, -87.3, 88.7, 2),
        ("erfc", torch.special.erfc, -11, 9.19, 9),
    ],
)
def test_functions_of_one_element(cpu, name: str, reference, lowest: float, highest: float, ulp: int) -> None:
    """Beside float64: many floats of normal results, small ones of either sign among them, and the ends."""
    even = torch.linspace(lowest, highest, 4_000_001)
    small = torch.logspace(-30, 0, 100_001).repeat(2) * torch.tensor([1.0, -1.0]).repeat_interleave(100_001)
    x = torch.cat([even, small])
    got = torch.empty_like(x)
    getattr(cpu, name)(x, got)
    wanted = reference(x.double())
    spacing = torch.exp2(wanted.abs().log2().floor() - 23)
    assert ((got.double() - wanted).abs() <= ulp * spacing).all()
    ends = torch.tensor([float("inf"), float("-inf"), float("nan"), 1e30, -1e30, 120.0, -120.0, 9.9, 0.0, -0.0])
    got = torch.empty_like(ends)
    getattr(cpu, name)(ends, got)
    torch.testing.assert_close(got, reference(ends.double()).float(), rtol=1e-4, atol=1e-44, equal_nan=True)


@pytest.mark.parametrize("grain", [1, 7, 1000, 10**9])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 1001, 100_003])
def test_each_item_is_visited_once(cpu, count: int, grain: int) -> None:
    visits = torch.zeros(count, dtype=torch.int32)
    threads = torch.zeros(count, dtype=torch.int64)
    cpu.visit(visits, threads, grain)
    assert torch.equal(visits, torch.ones_like(visits))


def test_below_two_grains_the_caller_does_it_all(cpu) -> None:
    visits, threads = torch.zeros(1999, dtype=torch.int32), torch.zeros(1999, dtype=torch.int64)
    cpu.visit(visits, threads, 1000)
    assert threads.unique().tolist() == [threading.get_ident()]


@pytest.mark.slow
@pytest.mark.parametrize(("variable", "most"), [("1", 1), ("2", 2), ("2,8", 2), ("0", 256), ("-3", 256), ("few", 256)])
def test_omp_num_threads_is_a_limit(children, private_cache, variable: str, most: int) -> None:
    """And so is the affinity mask: with one processor there is one thread, whatever the variable says."""
    program = (
        "import os, torch; from headers import toolbox\n"
        "cpu = toolbox.load('cpu.cpp')\n"
        "visits, threads = torch.zeros(1 << 22, dtype=torch.int32), torch.zeros(1 << 22, dtype=torch.int64)\n"
        "for only in (False, True):\n"
        "    if only: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "    cpu.visit(visits, threads, 1)\n"
        "    print(len(threads.unique()))\n"
    )
    printed = children.run(program, env={"OMP_NUM_THREADS": variable, "SGLJIT_CACHE_DIR": str(private_cache)})
    everywhere, on_one = map(int, printed.split())
    assert everywhere <= most
    assert on_one == 1


several_processors = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor, so one thread")


@pytest.mark.parametrize("grain", [1, 1 << 40], ids=["threads", "caller"])
@pytest.mark.parametrize("bad", [0, 500_000, (1 << 20) - 1])
def test_an_exception_in_a_loop_is_that_of_the_caller(cpu, grain: int, bad: int) -> None:
    visits = torch.zeros(1 << 20, dtype=torch.int32)
    with pytest.raises(ValueError, match=rf"^item {bad} is bad"):
        cpu.visit_but(visits, grain, bad)
    assert visits.max() <= 1
    assert visits[bad] == 0


def test_of_many_exceptions_in_a_loop_one_arrives_and_the_next_loop_is_whole(cpu) -> None:
    visits = torch.zeros(1 << 16, dtype=torch.int32)
    for _ in range(200):
        with pytest.raises(ValueError, match=r"^item \d+ is bad"):
            cpu.visit_but(visits, 1, -1)
    assert visits.count_nonzero() == 0
    cpu.visit_but(visits, 1, 1 << 16)
    assert (visits == 1).all()


@several_processors
def test_an_exception_of_a_thread_that_the_loop_started_arrives_in_the_caller(cpu) -> None:
    for _ in range(50):
        with pytest.raises(RuntimeError, match="bad_alloc"):
            cpu.throw_elsewhere(1 << 10)
