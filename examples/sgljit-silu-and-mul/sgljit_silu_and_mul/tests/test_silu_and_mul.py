"""The op against PyTorch, and what wrong arguments get."""

from __future__ import annotations

import pytest
import torch
from sgljit_core import ops
from sgljit_core.errors import TensorMatchError

from sgljit_silu_and_mul import reference

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]  # skipped where there is no GPU
ROUNDED_ONCE = {torch.float16: 2**-11, torch.bfloat16: 2**-8, torch.float32: 2**-20}


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture
def silu_and_mul():
    return ops["silu_and_mul"].silu_and_mul


def test_agrees_with_torch(silu_and_mul, device):
    for sample in reference.samples_of_silu_and_mul(device):
        x, out = sample.values()
        before = x.clone()
        expected = torch.empty_like(out, dtype=torch.float64)
        reference.silu_and_mul(x, expected)
        assert silu_and_mul(x, out) is None
        torch.testing.assert_close(out.double(), expected, rtol=1.01 * ROUNDED_ONCE[x.dtype], atol=1e-7)
        assert torch.equal(x, before)


def test_rows_may_have_any_stride_and_alignment(silu_and_mul, device):
    wide, target = torch.randn(5, 100, device=device).half(), torch.full((5, 64), float("nan"), device=device)
    for first, hidden in ((0, 40), (0, 33), (1, 40), (3, 33)):
        x, out = wide[:, first : first + 2 * hidden], target[:, first : first + hidden]
        target.fill_(float("nan"))
        silu_and_mul(x, out)
        expected = torch.empty_like(out, dtype=torch.float64)
        reference.silu_and_mul(x, expected)
        torch.testing.assert_close(out.double(), expected, rtol=2e-6, atol=1e-7)
        assert target.isnan().sum() == target.numel() - out.numel(), "nothing else is written"


def test_memory_that_another_row_reads_is_refused(silu_and_mul, device):
    x = torch.zeros(2, 8, device=device)
    with pytest.raises(ValueError, match="rows of out share memory with each other or with other rows of input"):
        silu_and_mul(x, x[:, 1:5])
    before = x.clone()
    silu_and_mul(x, x[:, :4])  # in place of the gate
    expected = torch.empty(2, 4, device=device, dtype=torch.float64)
    reference.silu_and_mul(before, expected)
    torch.testing.assert_close(x[:, :4].double(), expected)


def test_nan_and_infinity_propagate_as_in_torch(silu_and_mul, device):
    x = torch.tensor([[float("nan"), float("inf"), -float("inf"), 1.0, 2.0, 3.0]], device=device)
    out = torch.empty(1, 3, device=device)
    silu_and_mul(x, out)
    expected = torch.nn.functional.silu(x[:, :3]) * x[:, 3:]
    torch.testing.assert_close(out, expected, equal_nan=True)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        pytest.param(lambda x, out: (x, out.T.contiguous().T), "stride of 1, but got 2", id="columns side by side"),
        pytest.param(lambda x, out: (x.int(), out), r"expected one of \[float32, float16, bfloat16\]", id="dtype"),
        pytest.param(lambda x, out: (x[:, :6], out), "Size mismatch for a row: expected 3 but got 4", id="size"),
        pytest.param(lambda x, out: (x[:, :7], out), "parts of equal size, got 7 elements", id="odd"),
        pytest.param(lambda x, out: (x, out[:1]), "number of rows: expected 2 but got 1", id="tokens"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_with_the_cause(silu_and_mul, device, wrong, text):
    with pytest.raises(TensorMatchError, match=rf"(?s)silu_and_mul\.cpp.*{text}"):
        silu_and_mul(*wrong(torch.zeros(2, 8, device=device), torch.zeros(2, 4, device=device)))


def test_torch_compile_holds_it(silu_and_mul):
    def layer(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.shape[0], x.shape[1] // 2)
        silu_and_mul(x, out)
        return out * 2

    x = torch.randn(3, 8)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), torch.nn.functional.silu(x[:, :4]) * x[:, 4:] * 2)
