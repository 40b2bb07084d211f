"""Quantisation on CUDA: it compiles with no GPU present; with one, values, streams and graphs."""

from __future__ import annotations

import math

import pytest
import torch

from sgljit_core import override_cuda_arch
from sgljit_core.errors import CompileError
from sgljit_quant import reference, samples
from sgljit_quant.plugin import FAMILY
from sgljit_tools.testing import build_variant

from .helpers import DTYPES, FP8, assert_same_bytes, check, check_per_tensor, check_per_token, family, random

# Template arguments between those of a vector (elements, whether the last of a row is a part of one) and the dtype.
KERNELS = {
    "raise_scale": (),
    "quantize_small": (False,),
}
ARCHS = pytest.mark.parametrize(
    "arch",
    [
        pytest.param((8, 0), id="sm_80", marks=pytest.mark.slow),
        pytest.param((9, 0), id="sm_90a"),
        pytest.param((10, 0), id="sm_100a", marks=pytest.mark.slow),
    ],
)


@ARCHS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_compiles_without_a_gpu(name: str, dtype: torch.dtype, arch: tuple[int, int]):
    with override_cuda_arch(*arch):
        for vector in ((1, False), (16 // dtype.itemsize, False), (16 // dtype.itemsize, True)):
            build_variant(FAMILY, "quant.cuh", f"quant::{name}", *vector, *KERNELS[name], dtype)


def test_a_cluster_needs_sm_90():
    cluster = ("quant.cuh", "quant::quantize_small", 8, False, True, torch.float16)
    with override_cuda_arch(8, 0), pytest.raises(CompileError, match="clusters of blocks need sm_90"):
        build_variant(FAMILY, *cluster)
    with override_cuda_arch(9, 0):
        build_variant(FAMILY, *cluster)


def cuda(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return random(*shape, dtype=dtype, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", [64, 128, 256, 1024, 4096, 8192, 16384])
@pytest.mark.parametrize("tokens", [0, 1, 3, 128, 4097])
def test_model_sizes(tokens: int, hidden: int, dtype: torch.dtype):
    check(cuda(tokens, hidden, dtype=dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", [1, 7, 8, 24, 65, 1000, 1032, 4100, 32768, 32776, 65536, 100_003])
def test_any_size(columns: int, dtype: torch.dtype):
    for rows in (1, 3, 129):
        check(cuda(rows, columns, dtype=dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sizes_around_every_change_of_kernel(dtype: torch.dtype):
    """One block, 2, 4, 8 of a cluster, full registers of these, three launches; whole units and not."""
    elements = 16 // dtype.itemsize
    for units in (1, 32, 512, 513, 1024, 2048, 4096, 4097, 8192, 32768, 32769, 40000):
        for extra in (0, 1, -1):
            check_per_tensor(cuda(units * elements + extra, dtype=dtype))
    for units in (8, 9, 16, 32, 64, 65, 128, 129, 256, 257, 1024, 1025, 4096, 4097):
        for extra in (0, 1, -1):
            check_per_token(cuda(5, units * elements + extra, dtype=dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", [64, 80, 1024, 4096, 16384])
def test_rows_apart_and_out_of_line(hidden: int, dtype: torch.dtype):
    buffer = cuda(130, 3 * hidden + 16, dtype=dtype)
    check(buffer[:, hidden : 2 * hidden], gap=16)
    check(buffer[:, hidden : 2 * hidden], gap=3, offset=5)
    check(buffer[::2, 8 : hidden + 8])
    check(buffer[:, 1 : hidden + 1])  # no load of 16 bytes is aligned
    check(buffer[:1].expand(5, -1)[:, :hidden])
    check(buffer[:, : hidden - 1], gap=17)
    dense = buffer[:, :hidden].contiguous()
    check(dense.view(-1)[1:])
    check(dense, offset=1)
    check(dense.view(13, 10, hidden)[:, 3])


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["per_tensor_quant_fp8", "per_token_quant_fp8"])
def test_samples_against_the_reference(name: str):
    for sample in getattr(samples, name)(torch.device("cuda")):
        x, q, s, *rest = sample.values()
        expected_q, expected_s = torch.empty_like(q), s.clone()
        q.view(torch.uint8).fill_(0x2A)
        getattr(family, name)(x, q, s, *rest)
        getattr(reference, name)(x, expected_q, expected_s, *rest)
        assert_same_bytes(q, expected_q)
        assert_same_bytes(s, expected_s)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_half_is_the_same_byte_as_on_the_cpu(dtype: torch.dtype):
    x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    for scale in (1.0, 0.37, 1e-4):
        results = []
        for device in ("cpu", "cuda"):
            q = torch.empty(x.shape, dtype=FP8, device=device)
            family.per_tensor_quant_fp8(x.to(device), q, torch.tensor([scale], device=device), True)
            results.append(q.cpu())
        assert_same_bytes(*results)


SPECIALS = [math.nan, math.inf, -math.inf, 0.0, "smallest", "largest"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", [64, 4096, 100_000])
@pytest.mark.parametrize("special", SPECIALS)
def test_specials(special: float | str, hidden: int, dtype: torch.dtype):
    """One at the end; next to NaN, which must not hide it; a whole row; everywhere."""
    limits = torch.finfo(dtype)
    special = {"smallest": limits.smallest_normal * limits.eps, "largest": limits.max}.get(special, special)
    x = cuda(7, hidden, dtype=dtype)
    x[3, hidden - 1] = special
    check(x)
    x[3, hidden - 2] = math.nan
    check(x)
    x[5] = special
    check(x)
    x.fill_(special)
    check(x)


@pytest.mark.gpu
def test_random_shapes():
    torch.manual_seed(0)
    for _ in range(1000):
        limit = 5000 if torch.rand(()) < 0.2 else 300
        rows, columns = torch.randint(1, 40, ()).item(), torch.randint(1, limit, ()).item()
        dtype = DTYPES[torch.randint(0, 3, ()).item()]
        start = torch.randint(0, 20, ()).item()
        x = torch.randn(rows, columns + 20, device="cuda")[:, start : start + columns].to(dtype)
        x = x if torch.rand(()) < 0.5 else x.contiguous()
        check_per_tensor(x, gap=torch.randint(0, 20, ()).item(), offset=16 * torch.randint(1, 3, ()).item())
        check_per_token(x)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["per_tensor_quant_fp8", "per_token_quant_fp8"])
def test_more_than_2_31_elements(name: str):
    x = torch.full((2**19 + 3, 4096), 3.0, dtype=torch.bfloat16, device="cuda")
    x[-1, -1] = -12.0
    q = torch.zeros(x.shape, dtype=torch.uint8, device="cuda").view(FP8)
    s = torch.empty(1 if name == "per_tensor_quant_fp8" else x.shape[0], device="cuda")
    getattr(family, name)(x, q, s)
    assert s[-1].item() == pytest.approx(12 / 448)
    assert q[-1, -1].item() == -448
    assert q[-1, 0].item() == 112
    byte = q.view(torch.uint8)[0, 0]
    assert q[0, 0].item() == (112 if s.numel() == 1 else 448)
    rows = q.view(torch.uint8)[:-1]
    assert (rows == byte).all()


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(8, 64), (129, 4096), (1000, 8192)])
def test_another_stream(shape: tuple[int, int]):
    """The kernels run on the current stream: after what is queued there, without waiting for it here."""
    x, q, s, t = cuda(*shape), torch.empty(shape, dtype=FP8, device="cuda"), *torch.empty(2, shape[0], device="cuda")
    fresh = x.clone()
    x.fill_(math.nan)
    r = torch.empty_like(q)
    family.per_tensor_quant_fp8(x, q, s[:1])  # compiled and loaded
    family.per_token_quant_fp8(x, r, t)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # cycles, so that a kernel on any other stream comes too early
        x.copy_(fresh)
        family.per_tensor_quant_fp8(x, q, s[:1])
        family.per_token_quant_fp8(x, r, t)
    assert not stream.query()
    stream.synchronize()
    for got, scale, op in ((q, s[:1], "per_tensor_quant_fp8"), (r, t, "per_token_quant_fp8")):
        expected, expected_s = torch.empty_like(got), torch.empty_like(scale)
        getattr(reference, op)(fresh, expected, expected_s)
        assert_same_bytes(got, expected)
        assert_same_bytes(scale, expected_s)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 64), (64, 4096), (129, 4096), (2000, 8192)])
def test_graph_capture_and_replay_with_other_data(shape: tuple[int, int]):
    """A dynamic scale that falls from replay to replay: nothing of the replay before may be left in it.

    The input is written inside the graph, right before it is read; several in a row, so that on sm_90 launches depend.
    """
    source, x = cuda(*shape), cuda(*shape)
    q, r = (torch.empty(shape, dtype=FP8, device="cuda") for _ in range(2))
    s, t = torch.empty(1, device="cuda"), torch.empty(shape[0], device="cuda")

    def work() -> None:
        torch.mul(source, 2, out=x)
        family.per_tensor_quant_fp8(x, q, s)
        family.per_token_quant_fp8(x, r, t)
        torch.mul(source, 4, out=x)
        family.per_tensor_quant_fp8(x, q, s)
        family.per_token_quant_fp8(x, r, t)

    work()  # a capture must not meet a compile
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    for magnitude in (1e3, 1.0, 1e-3):
        source.normal_().mul_(magnitude)
        for output in (q, r):
            output.view(torch.uint8).fill_(0x2A)
        for scale in (s, t):
            scale.fill_(math.nan)
        graph.replay()
        for got, scale, op in ((q, s, "per_tensor_quant_fp8"), (r, t, "per_token_quant_fp8")):
            expected, expected_s = torch.empty_like(got), torch.empty_like(scale)
            getattr(reference, op)(source * 4, expected, expected_s)
            assert_same_bytes(scale, expected_s)
            assert_same_bytes(got, expected)


@pytest.mark.gpu
def test_a_chain_of_dependent_launches():
    """Each call reads what the kernel right before it wrote, and overwrites what the one before reads."""
    x = cuda(1031, 1024)
    q, s = torch.empty(x.shape, dtype=FP8, device="cuda"), torch.empty(1, device="cuda")
    scales = torch.empty(50, device="cuda")
    y = torch.empty_like(x)
    for i in range(50):
        torch.mul(x, 1 + i, out=y)
        family.per_tensor_quant_fp8(y, q, s)
        scales[i : i + 1].copy_(s)
    expected = torch.stack([(x * (1 + i)).float().abs().max() for i in range(50)])
    assert torch.equal(scales, expected / torch.full_like(expected, 448))


@pytest.mark.gpu
def test_torch_compile():
    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, s = torch.empty(x.shape, dtype=FP8, device="cuda"), torch.empty(1, device="cuda")
        family.per_tensor_quant_fp8(x, q, s)
        t = torch.empty(x.shape[0], device="cuda")
        family.per_token_quant_fp8(x, q, t)
        return q.float() * t[:, None], s + 1

    x = cuda(3, 64)
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    for got, expected in zip(compiled(x), both(x), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_second_device():
    check(cuda(128, 4096).to("cuda:1"))  # while device 0 is current
    assert torch.cuda.current_device() == 0
