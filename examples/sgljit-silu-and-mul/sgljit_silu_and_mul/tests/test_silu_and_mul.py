"""The op against PyTorch, and what wrong arguments get."""

from __future__ import annotations

import pytest
import torch

from sgljit_core import ops, override_cuda_arch
from sgljit_core.errors import TensorMatchError, ToolchainNotFoundError
from sgljit_silu_and_mul import reference
from sgljit_silu_and_mul.ops import variants

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")],
    ),
]
ROUNDED_ONCE = {torch.float16: 2**-11, torch.bfloat16: 2**-8, torch.float32: 2**-20}


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture
def silu_and_mul():
    return ops["silu_and_mul"].silu_and_mul


def test_agrees_with_torch(silu_and_mul, device):
    for sample in reference.samples(device):
        x, out = sample.values()
        before = x.clone()
        expected = torch.empty_like(out, dtype=torch.float64)
        reference.silu_and_mul(x, expected)
        assert silu_and_mul(x, out) is None
        torch.testing.assert_close(out.double(), expected, rtol=1.01 * ROUNDED_ONCE[x.dtype], atol=1e-7)
        assert torch.equal(x, before)


def test_nan_and_infinity_propagate_as_in_torch(silu_and_mul, device):
    x = torch.tensor([[float("nan"), float("inf"), -float("inf"), 1.0, 2.0, 3.0]], device=device)
    out = torch.empty(1, 3, device=device)
    silu_and_mul(x, out)
    expected = torch.nn.functional.silu(x[:, :3]) * x[:, 3:]
    torch.testing.assert_close(out, expected, equal_nan=True)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        pytest.param(lambda x, out: (x, out[:, :3]), "Stride mismatch: expected a contiguous tensor", id="strided"),
        pytest.param(lambda x, out: (x.half(), out), "DType mismatch: expected float32 but got float16", id="dtype"),
        pytest.param(lambda x, out: (x[:, :6].contiguous(), out), "expected 8 but got 6", id="size"),
        pytest.param(lambda x, out: (x, out[0]), "Dimension mismatch: expected 2 but got 1", id="rank"),
        pytest.param(lambda x, out: (x, out[:1]), "expected 1 but got 2", id="tokens"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_with_the_cause(silu_and_mul, device, wrong, text):
    with pytest.raises(TensorMatchError, match=rf"(?s)silu_and_mul\.cpp.*{text}"):
        silu_and_mul(*wrong(torch.zeros(2, 8, device=device), torch.zeros(2, 4, device=device)))


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0)])
def test_what_it_declares_builds_without_a_gpu(capability):
    with override_cuda_arch(*capability):
        try:
            assert [build() is None for build in variants()].count(True) == 3
        except ToolchainNotFoundError as error:
            pytest.skip(str(error))


def test_torch_compile_holds_it(silu_and_mul):
    def layer(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.shape[0], x.shape[1] // 2)
        silu_and_mul(x, out)
        return out * 2

    x = torch.randn(3, 8)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), torch.nn.functional.silu(x[:, :4]) * x[:, 4:] * 2)
