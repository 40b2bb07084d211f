"""Atomics under contention, barriers, clusters, dependent launch and launch errors, on the GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch

pytestmark = pytest.mark.gpu

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64]


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@pytest.fixture(scope="module")
def module(build):
    return build("memory.cu")


@pytest.fixture(scope="module")
def hopper() -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("needs sm_90")


@pytest.mark.parametrize("shared", [False, True], ids=["global", "shared"])
@pytest.mark.parametrize("slots", [1, 2, 7])
@pytest.mark.parametrize("dtype", TYPES, ids=name)
def test_atomics_under_contention(module, dtype: torch.dtype, slots: int, shared: bool) -> None:
    """135 168 threads and few places. The numbers are such that every partial sum is exact in the type."""
    halves = dtype.itemsize == 2
    n = 200_000 // slots * slots
    if halves:
        # +1 and -1 in turn would still wander; few enough that no partial sum exceeds 256, whatever the order
        values = torch.zeros(n, device="cuda")
        values[torch.randperm(n, device="cuda")[:200]] = 1.0
    else:
        values = torch.randint(-1000, 1000, (n,), device="cuda").double()
    values = values.to(dtype)
    if halves:
        out = torch.tensor([[0.0], [-5.0], [5.0]], dtype=dtype, device="cuda").repeat(1, slots)
    else:
        out = torch.tensor([[0], [-5000], [5000]], dtype=dtype, device="cuda").repeat(1, slots)
    getattr(module, f"atomics_{name(dtype)}")(out, values, shared)
    rows = values.double().view(-1, slots)
    wanted = torch.stack([rows.sum(0), rows.amax(0), rows.amin(0)])
    assert torch.equal(out.double(), wanted)


@pytest.mark.parametrize("dtype", TYPES, ids=name)
def test_atomics_return_the_value_before(module, dtype: torch.dtype) -> None:
    values = torch.tensor([3, -2, 7, 7, -9, 0, 1], device="cuda").to(dtype)
    n = len(values)
    out = torch.tensor([10, 1, 1], device="cuda").to(dtype)
    old = torch.empty(3, n, dtype=dtype, device="cuda")
    getattr(module, f"atomic_old_{name(dtype)}")(out, old, values)
    sums, tops, bottoms = [10.0], [1.0], [1.0]
    for value in values.tolist():
        sums.append(sums[-1] + value)
        tops.append(max(tops[-1], value))
        bottoms.append(min(bottoms[-1], value))
    assert old.double().tolist() == [sums[:-1], tops[:-1], bottoms[:-1]]
    assert out.double().tolist() == [sums[-1], tops[-1], bottoms[-1]]


@pytest.mark.parametrize("dtype", TYPES[:4], ids=name)
@pytest.mark.parametrize("start", [-0.0, 0.0, -torch.inf, torch.inf, -1.5, torch.nan])
def test_atomic_maximum_of_special_values(module, dtype: torch.dtype, start: float) -> None:
    values = torch.tensor([-0.0, 0.0, torch.nan, -1e-7, 2.0, -torch.inf, torch.inf, -3.0], device="cuda").to(dtype)
    for value in values:
        out = torch.tensor([0.0, start, start], dtype=dtype, device="cuda")
        old = torch.empty(3, 1, dtype=dtype, device="cuda")
        getattr(module, f"atomic_old_{name(dtype)}")(out, old, value.reshape(1))
        if torch.isnan(value):
            top = bottom = start
        elif start != start:
            stays = dtype == torch.float32  # in max, as its sign bit is clear
            assert out[1].isnan() if stays else out[1] == value
            assert out[2] == value
            continue
        else:
            top, bottom = max(start, value.item()), min(start, value.item())
        if top == top:
            assert out[1].item() == top
            assert out[2].item() == bottom
        else:
            assert out[1].isnan()


@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize("kind", ["streaming", "no_allocate"])
def test_cache_hints(module, kind: str, width: int) -> None:
    values = torch.randint(0, 256, (64_000,), device="cuda").to(torch.uint8)
    out = torch.zeros_like(values)
    getattr(module, f"{kind}_{width}")(out, values)
    assert torch.equal(out, values)


@pytest.mark.parametrize(
    ("name", "dtype"), [("flag", torch.int32), ("flag_system_32", torch.int32), ("flag_system_64", torch.int64)]
)
def test_acquire_and_release(module, name: str, dtype: torch.dtype) -> None:
    for _ in range(20):
        out = torch.zeros(8, 1000, dtype=torch.int32, device="cuda")
        data = torch.zeros(1000, dtype=torch.int32, device="cuda")
        getattr(module, name)(out, data, torch.zeros(1, dtype=dtype, device="cuda"))
        assert torch.equal(out, (torch.arange(1000, device="cuda") * 3 + 1).int().expand(8, 1000))


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("threads", [32, 256, 1024])
def test_mbarrier(module, threads: int) -> None:
    out = torch.zeros(10, threads, dtype=torch.int32, device="cuda")
    module.mbarrier(out)
    wanted = (torch.arange(1, 11, device="cuda") * threads).int()
    assert torch.equal(out, wanted[:, None].expand_as(out))


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("size", [2, 4, 8])
def test_cluster(module, size: int) -> None:
    out = torch.full((64, 2), -1, dtype=torch.int32, device="cuda")
    module.cluster(out, size)
    block = torch.arange(64)
    neighbour = block // size * size + (block + 1) % size
    wanted = torch.stack([block % size, block * 0 + (neighbour % size) + 100 * neighbour], 1)
    assert torch.equal(out.cpu(), wanted.int())


@pytest.mark.usefixtures("hopper")
def test_pdl_keeps_the_order(module) -> None:
    start = torch.randint(-100, 100, (100_000,), dtype=torch.int32, device="cuda")
    plain, chained = start.clone(), start.clone()
    for _ in range(10):
        module.chain(plain, 40, False)
        module.chain(chained, 40, True)
    assert torch.equal(plain, chained)


@pytest.mark.usefixtures("hopper")
def test_pdl_overlaps(module) -> None:
    def run(pdl: bool) -> tuple[int, int]:
        times = torch.zeros(2, dtype=torch.int64, device="cuda")
        values = torch.zeros(2, dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()
        module.overlap(times, values, pdl)
        torch.cuda.synchronize()
        assert values.tolist() == [42, 42]
        first_ended, second_began = times.tolist()
        return first_ended, second_began

    run(True)
    run(False)
    ended, began = run(False)
    assert began >= ended
    ended, began = run(True)
    assert began < ended


@pytest.mark.usefixtures("hopper")
def test_pdl_in_a_graph(module) -> None:
    x = torch.ones(10_000, dtype=torch.int32, device="cuda")
    module.chain(x, 3, True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module.chain(x, 3, True)
    x.fill_(2)
    graph.replay()
    wanted = 2
    for step in range(3):
        wanted = wanted * 3 + step
    assert (x == wanted).all()


# ---- launches ----


def test_launch_on_the_current_stream(module) -> None:
    x = torch.zeros(1000, dtype=torch.int32, device="cuda")
    module.fill(x, 0, 128)  # loads the kernel, which may wait for the device
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        module.fill(x, 1, 128)
        module.fill_on_stream(x[:512], 2)
    assert not stream.query()
    stream.synchronize()
    assert x[:512].eq(2).all()
    assert x[512:].eq(1).all()


def test_nothing_to_launch(module) -> None:
    module.fill(torch.zeros(0, dtype=torch.int32, device="cuda"), 1, 128)


def test_launch_on_another_device(module) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x = torch.zeros(1000, dtype=torch.int32, device="cuda:1")
    with torch.cuda.device(0):
        module.fill(x, 5, 128)
        assert torch.cuda.current_device() == 0
    torch.cuda.synchronize(1)
    assert x.eq(5).all()


def test_large_dynamic_shared_memory(module) -> None:
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    for size in (1024, 49_152, 65_536, module.query(4, 0)):
        module.dynamic_smem(out, size)
        assert out.item() == size // 4 - 1


def test_static_shared_memory_counts_too(module) -> None:
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    for size in (1024, 48_128, 48_132, 49_152, 65_536, 1024, 65_536):  # with 1024 static ones
        module.static_and_dynamic_smem(out.zero_(), size)
        assert out.item() == 256


def test_a_launch_that_cannot_be(module) -> None:
    x = torch.zeros(10, dtype=torch.int32, device="cuda")
    with pytest.raises(
        RuntimeError,
        match=r"(?s)^CUDA error at \S*memory.cu:\d+: cudaErrorInvalid\w+ \(\d+\): .*"
        r"\n- Launch: grid=<1, 1, 1>, block=<2048, 1, 1>, cluster=<1, 1, 1>, dynamic_smem=0, pdl=false$",
    ):
        module.fill(x, 1, 2048)
    with pytest.raises(RuntimeError, match=r"^CUDA error at \S*memory.cu:\d+: cudaErrorInvalid\w+ \(\d+\): "):
        module.fill_plainly(x, 2048)
    for size in (10**9, 2**31, 2**32 + 1024):
        with pytest.raises(RuntimeError, match=rf"(?s)cudaErrorInvalidValue.* dynamic_smem={size},"):
            module.dynamic_smem(x, size)
    # Nothing is left behind.
    module.fill_plainly(x, 32)
    module.fill(x, 3, 32)
    assert x.eq(3).all()
    with pytest.raises(RuntimeError, match="kernels run on CUDA devices, got cpu"):
        module.fill(torch.zeros(10, dtype=torch.int32), 1, 32)
    with pytest.raises(ValueError, match="a launch dimension must be between 0 and 4294967295"):
        module.fill(x, 1, -1)


@pytest.mark.usefixtures("module")  # built, so that the other process finds it
def test_an_error_left_by_an_earlier_kernel() -> None:
    """In a process of its own, which afterwards cannot use the device."""
    script = """
        import torch
        from headers import toolbox
        module = toolbox.load("memory.cu")
        x = torch.zeros(10, dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()
        module.crash(x)
        try:
            module.fill(x, 1, 32)
        except RuntimeError as error:
            print(error)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=300, env=environment
    )
    assert "cudaErrorIllegalAddress (700)" in result.stdout, result.stdout + result.stderr
    assert "A kernel that ran before this call caused it, not this call" in result.stdout


def test_runtime_queries(module) -> None:
    properties = torch.cuda.get_device_properties(0)
    for device in (0, -1):
        assert module.query(0, device) == properties.multi_processor_count
        assert module.query(1, device) == properties.major
        assert module.query(2, device) == properties.minor
    assert module.query(3, 0) >= 12_000
    assert module.query(4, 0) >= 48 * 1024
    assert module.query(5, 0) == 2
    assert 48 * 1024 < module.query(6, 0) < module.query(4, 0)


def test_occupancy_of_a_kernel_that_was_never_launched(module) -> None:
    most = module.query(4, 0) - 1024  # its static shared memory
    assert module.blocks_per_sm(256, most) == 1
    assert module.blocks_per_sm(256, 1024) > 1
    for size in (most + 1, 10**9, 2**31, 2**32 + 1024, -1):  # the last is 2**64 - 1
        assert module.blocks_per_sm(256, size) == 0
    with pytest.raises(RuntimeError, match=r"cudaErrorInvalid\w+"):
        module.blocks_per_sm(0, 1024)
    module.fill_plainly(torch.zeros(10, dtype=torch.int32, device="cuda"), 32)  # nothing is left behind
