"""rmsnorm on CUDA: it compiles with no GPU present; with one, values, streams and graphs."""

from __future__ import annotations

import pytest
import torch

from sgljit_core import ops, override_cuda_arch
from sgljit_core.errors import CompileError
from sgljit_norm import reference, samples
from sgljit_norm.ops import variants
from sgljit_norm.plugin import FAMILY

from .helpers import Guarded, assert_accurate, check, relative_error

rmsnorm = ops["norm"].rmsnorm
HALVES = [torch.float16, torch.bfloat16]
HIDDEN_SIZES = [64, 128, 256, 512, 1024, 4096, 8192, 16384]

# One of each kind: any size, part of a warp, a warp, a block, a block with the weight loaded late; each dtype.
KINDS = [
    *((hidden_size, torch.bfloat16) for hidden_size in (0, 64, 1024, 4096, 16384)),
    (4096, torch.float16),
    (4096, torch.float32),
]


@pytest.mark.parametrize("arch", [(8, 0), (9, 0), (10, 0)], ids=["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize(("hidden_size", "dtype"), KINDS)
def test_a_kernel_compiles_without_a_gpu(hidden_size: int, dtype: torch.dtype, arch: tuple[int, int]):
    name, size = ("rmsnorm", hidden_size) if hidden_size else ("rmsnorm_any_size", 16 // dtype.itemsize)
    with override_cuda_arch(*arch):
        FAMILY.build_variant("rmsnorm.cuh", f"norm_kernels::{name}", size, arch >= (9, 0), dtype)


def test_a_row_that_does_not_fit_is_refused_by_the_device_code():
    with override_cuda_arch(9, 0), pytest.raises(CompileError, match="must be a whole number of 16-byte loads"):
        FAMILY.build_variant("rmsnorm.cuh", "norm_kernels::rmsnorm", 1001, True, torch.bfloat16)


def test_every_declared_variant_builds():
    with override_cuda_arch(9, 0):
        builds = list(variants())
        assert len(builds) > 20
        for build in builds:
            build()


def inputs(num_tokens: int, hidden_size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(num_tokens * 100_003 + hidden_size)
    x = torch.randn(num_tokens, hidden_size, device="cuda").to(dtype)
    return x, torch.randn(hidden_size, device="cuda").to(dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
@pytest.mark.parametrize("hidden_size", HIDDEN_SIZES)
@pytest.mark.parametrize("num_tokens", [0, 1, 3, 128, 4097])
def test_model_sizes(num_tokens: int, hidden_size: int, dtype: torch.dtype):
    check(*inputs(num_tokens, hidden_size, dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
@pytest.mark.parametrize("hidden_size", [1, 7, 8, 24, 65, 1000, 1032, 4100, 5120, 32768, 65536, 100_003])
def test_any_hidden_size(hidden_size: int, dtype: torch.dtype):
    for num_tokens in (1, 3, 129):
        check(*inputs(num_tokens, hidden_size, dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("hidden_size", HIDDEN_SIZES)
def test_rows_apart_and_out_of_line(hidden_size: int, dtype: torch.dtype):
    buffer, weight = inputs(130, 3 * hidden_size + 8, dtype)[0], inputs(1, hidden_size, dtype)[1]
    check(buffer[:, hidden_size : 2 * hidden_size], weight)
    check(buffer[::2, 8 : hidden_size + 8], weight)
    check(buffer[:, 1 : hidden_size + 1], weight)  # no load of 16 bytes is aligned
    check(buffer[:1].expand(5, -1)[:, :hidden_size], weight)
    out = Guarded(130, hidden_size, dtype, "cuda", offset=3)
    rmsnorm(buffer[:, :hidden_size], weight, out.tensor)
    out.assert_margins_untouched()
    assert_accurate(out.tensor, buffer[:, :hidden_size], weight)
    x = buffer[:, :hidden_size].contiguous()
    misaligned = torch.empty(hidden_size + 1, dtype=dtype, device="cuda")[1:].copy_(weight)
    check(x, misaligned)


@pytest.mark.gpu
def test_samples_against_the_reference():
    for x, weight, out, eps in samples.rmsnorm(torch.device("cuda")):
        before = x.clone()
        if out is not None:
            out.fill_(float("nan"))
        rmsnorm(x, weight, out, eps)
        assert_accurate(x if out is None else out, before, weight, eps)


@pytest.mark.gpu
@pytest.mark.parametrize("hidden_size", [256, 4096])
@pytest.mark.parametrize("special", [float("nan"), float("inf"), 0.0])
def test_specials_go_as_in_pytorch(special: float, hidden_size: int):
    x, weight = inputs(3, hidden_size, torch.bfloat16)
    x[1] *= 0 if special == 0 else 1
    x[1, 5] = special
    expected = torch.nn.functional.rms_norm(x, (hidden_size,), weight, 1e-6)
    rmsnorm(x, weight)
    assert torch.equal(x[1].isnan(), expected[1].isnan())
    assert torch.equal(x[1].nan_to_num(0), expected[1].nan_to_num(0))


@pytest.mark.gpu
def test_more_than_2_31_elements():
    x = torch.empty(2**19 + 3, 4096, dtype=torch.bfloat16, device="cuda").fill_(2.0)
    rmsnorm(x, torch.full((4096,), 3.0, dtype=torch.bfloat16, device="cuda"))
    assert (x == 3.0).all()


@pytest.mark.gpu
@pytest.mark.parametrize("hidden_size", [64, 4096, 16384])
def test_another_stream(hidden_size: int):
    """The kernel runs on the current stream: after what is queued there, without waiting for it here."""
    x, weight = inputs(128, hidden_size, torch.bfloat16)
    fresh = x.clone()
    x.fill_(float("nan"))
    rmsnorm(x.clone(), weight)  # compiled and loaded
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # cycles, so that a kernel on any other stream comes too early
        x.copy_(fresh)
        rmsnorm(x, weight)
    assert not stream.query()
    stream.synchronize()
    assert_accurate(x, fresh, weight)


@pytest.mark.gpu
@pytest.mark.parametrize("hidden_size", [64, 65, 4096, 16384])
def test_graph_capture_and_replay_with_other_data(hidden_size: int):
    """Twice in a row, so that on sm_90 the second launch is a dependent one inside the graph."""
    x, weight = inputs(128, hidden_size, torch.bfloat16)
    middle, out = torch.empty_like(x), torch.empty_like(x)
    rmsnorm(x, weight, middle)  # a capture must not meet a compile
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rmsnorm(x, weight, middle)
        rmsnorm(middle, weight, out)
    for seed in range(3):
        torch.manual_seed(seed)
        x.normal_()
        weight.normal_()
        middle.fill_(float("nan"))
        out.fill_(float("nan"))
        graph.replay()
        assert_accurate(middle, x, weight)
        assert_accurate(out, middle, weight)


@pytest.mark.gpu
def test_a_chain_of_dependent_launches():
    """Each launch reads what the one before it wrote; nothing else stands between them."""
    x, weight = inputs(4097, 256, torch.bfloat16)
    expected = x.clone()
    for _ in range(50):
        rmsnorm(expected, weight)
        torch.cuda.synchronize()
    for _ in range(50):
        rmsnorm(x, weight)
    assert torch.equal(x, expected)


@pytest.mark.gpu
def test_torch_compile():
    def double_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        rmsnorm(x, weight, out)
        rmsnorm(out, weight)
        return out + 1

    x, weight = inputs(3, 64, torch.bfloat16)
    compiled = torch.compile(double_norm, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, weight), double_norm(x, weight))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_second_device():
    x, weight = (tensor.to("cuda:1") for tensor in inputs(128, 4096, torch.bfloat16))
    expected = torch.empty_like(x, dtype=torch.float64)
    reference.rmsnorm(x, weight, expected)
    rmsnorm(x, weight)  # while device 0 is current
    assert torch.cuda.current_device() == 0
    assert relative_error(x, expected) < 1e-2
