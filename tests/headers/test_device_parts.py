"""The parts of row programs in kernels of an author's own, against PyTorch; NVRTC compiles them without a GPU."""

from __future__ import annotations

import pytest
import torch
from headers import toolbox

KERNELS = """
template __global__ void parts::softmax<4096, 256>(bf16_t*, const bf16_t*);
template __global__ void parts::unit_heads<64, 8, 8>(float*, float*, const bf16_t*, int64_t);
template __global__ void parts::first_largest<8192, 64, 2>(int*, bf16_t*, const bf16_t*);
"""


@pytest.mark.parametrize("arch", ["90a", pytest.param("75", marks=pytest.mark.slow)])
def test_nvrtc(arch: str) -> None:
    source = f'#include "{toolbox.CSRC / "parts.cuh"}"\n{KERNELS}'
    assert toolbox.compile_nvrtc(source, arch) == ""


def test_a_cluster_needs_hopper() -> None:
    call = "device::cluster::all_reduce<2>(x, &smem, [](float a, float) { return a; });"
    source = f"#include <sgl_kernel/cluster.cuh>\n__global__ void kernel(float x) {{ __shared__ float smem; {call} }}\n"
    log = toolbox.compile_nvrtc(source, "80")
    assert "cluster::all_reduce: clusters of blocks need sm_90" in log


@pytest.fixture(scope="module")
def module(build):
    return build("parts.cu")


def rows(count: int, columns: int) -> torch.Tensor:
    torch.manual_seed(columns)
    return (3 * torch.randn(count, columns, device="cuda")).bfloat16()


@pytest.mark.gpu
@pytest.mark.parametrize(("columns", "threads"), [(4096, 256), (1024, 32), (8184, 512), (8192, 1024)])
def test_softmax(module, columns: int, threads: int) -> None:
    x = rows(37, columns)
    x[1] = -3e38
    x[2, : columns // 2] = -torch.inf
    out = torch.full_like(x, torch.nan)
    getattr(module, f"softmax_{columns}_{threads}")(out, x)
    wanted = x.double().softmax(-1)
    torch.testing.assert_close(out.double(), wanted, rtol=2**-8, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize(("columns", "elements", "threads"), [(64, 8, 8), (96, 4, 32), (128, 1, 16), (8, 8, 1)])
@pytest.mark.parametrize("heads", [1, 3, 4, 1001])
def test_heads_of_lanes(module, heads: int, columns: int, elements: int, threads: int) -> None:
    x = rows(heads, columns)
    out = torch.full((heads + 1, columns), 77.0, device="cuda")
    totals = torch.full((heads + 1, 2), 77.0, device="cuda")
    getattr(module, f"unit_heads_{columns}_{elements}_{threads}")(out[:heads], totals[:heads], x)
    assert out[heads].eq(77).all()
    assert totals[heads].eq(77).all()
    torch.testing.assert_close(out[:heads], torch.nn.functional.normalize(x.float()), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(totals[:heads, 0], x.float().square().sum(1), rtol=1e-5, atol=0)
    assert torch.equal(totals[:heads, 1], x.float().amax(1))


@pytest.mark.gpu
@pytest.mark.parametrize(("columns", "threads", "blocks"), [(8192, 64, 2), (16376, 128, 8)])
def test_a_row_of_a_cluster(module, columns: int, threads: int, blocks: int) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("needs sm_90")
    x = rows(21, columns)
    x[3] = 5.0  # the first of equals
    x[4, -1] = 1000.0
    out = torch.full((21, blocks * threads, 2), -77, dtype=torch.int32, device="cuda")
    copy = torch.full_like(x, torch.nan)
    getattr(module, f"first_largest_{columns}_{threads}_{blocks}")(out, copy, x)
    assert torch.equal(copy, x)
    columns_of = torch.stack([(row == row.max()).nonzero()[0, 0] for row in x])
    assert torch.equal(out[..., 0].long(), columns_of[:, None].expand(21, blocks * threads))
    assert out[..., 1].eq(columns).all()


@pytest.mark.gpu
@pytest.mark.parametrize("distance", [1, 2, 7, 16, 31])
def test_exchange(module, distance: int) -> None:
    out = torch.full((4, 32), 77.0, device="cuda")
    module.exchange(out, distance)
    other = (torch.arange(32) ^ distance).float()
    wanted = torch.stack([other * (1 + 200 + 30000), other / 2, other / 2, other / 4])
    assert torch.equal(out.cpu(), wanted)
