"""The op against PyTorch, and what wrong arguments get."""

from __future__ import annotations

import inspect

import pytest
import torch
from sgljit_core import ops, override_cuda_arch
from sgljit_core.errors import TensorMatchError, ToolchainNotFoundError

from sgljit_add_constant import reference
from sgljit_add_constant.ops import add_constant as function
from sgljit_add_constant.ops import load_module

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]  # skipped where there is no GPU


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture
def add_constant():
    return ops["add_constant"].add_constant


def test_agrees_with_torch(add_constant, device):
    for sample in reference.samples_of_add_constant(device):
        src, constant = sample.values()
        before = src.clone()
        result = add_constant(src, constant)
        torch.testing.assert_close(result, reference.add_constant(src, constant), rtol=0, atol=0)
        assert torch.equal(src, before)


@pytest.mark.parametrize("constant", [2**31, -(2**31) - 1, 10**20])
def test_a_constant_that_no_int32_holds(add_constant, device, constant):
    src = torch.zeros(4, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match=rf"constant must fit into an int32.* got {constant}$"):
        add_constant(src, constant)


def test_a_constant_that_is_no_integer(add_constant):
    with pytest.raises(TypeError, match="float"):
        add_constant(torch.zeros(4, dtype=torch.int32), 1.5)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda src: src.to(torch.int64), id="dtype"),
        pytest.param(lambda src: src.reshape(2, 4), id="rank"),
        pytest.param(lambda src: src.expand(8, 8)[:, 0], id="strided"),
    ],
)
def test_a_tensor_the_kernel_cannot_take(add_constant, device, wrong):
    src = wrong(torch.zeros(8, dtype=torch.int32, device=device))
    with pytest.raises(TensorMatchError, match=r"add_constant\.c"):
        add_constant(src, 7)


def test_a_device_without_kernels():
    with pytest.raises(ValueError, match="must be on a CUDA device or the CPU, got meta"):
        inspect.unwrap(function)(torch.zeros(4, dtype=torch.int32, device="meta"), 7)


def test_on_meta_tensors_the_shape_is_worked_out_and_nothing_runs(add_constant):
    out = add_constant(torch.zeros(4, dtype=torch.int32, device="meta"), 7)
    assert (out.shape, out.dtype, out.device.type) == ((4,), torch.int32, "meta")


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0)])
def test_the_cuda_module_builds_without_a_gpu(capability):
    with override_cuda_arch(*capability):
        try:
            module = load_module(7, "cuda")
        except ToolchainNotFoundError as error:
            pytest.skip(str(error))
    on_cpu = torch.zeros(4, dtype=torch.int32)
    with pytest.raises(TensorMatchError, match=r"(?s)add_constant\.cu:\d+.*Device mismatch"):
        module.add_constant(on_cpu, on_cpu)


def test_torch_compile_holds_it(add_constant):
    compiled = torch.compile(lambda src: add_constant(src, 7) * 2, fullgraph=True, backend="aot_eager")
    assert compiled(torch.arange(3, dtype=torch.int32)).tolist() == [14, 16, 18]
