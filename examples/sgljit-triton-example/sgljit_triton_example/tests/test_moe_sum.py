"""The op against float64, and what wrong arguments get."""

from __future__ import annotations

import pytest
import torch
from sgljit_core.errors import TensorMatchError

from sgljit_triton_example import moe_sum
from sgljit_triton_example.reference import moe_sum as reference

pytest.importorskip("triton", reason="Triton compiles the kernel, and its interpreter runs it: pip install triton")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_it_agrees_with_float64(device, dtype, weighted):
    rows = torch.randn(3, 8, 1100, device=device).to(dtype)
    weights = torch.rand(3, 8, device=device) if weighted else None
    output = torch.full((3, 1100), float("nan"), device=device, dtype=dtype)
    expected = torch.empty_like(output)
    reference(rows, expected, weights, routed_scaling_factor=0.5)
    moe_sum(rows, output, weights, routed_scaling_factor=0.5)
    close = {torch.float32: 2**-18, torch.float16: 2**-9, torch.bfloat16: 2**-7}[dtype]
    torch.testing.assert_close(output, expected, rtol=close, atol=close)


def test_it_adds_in_float32(device):
    """In bfloat16, 256 + 1 is 256."""
    rows = torch.ones(1, 9, 80, device=device).bfloat16()
    rows[:, 0] = 256
    output = torch.empty(1, 80, device=device, dtype=torch.bfloat16)
    moe_sum(rows, output)
    assert torch.equal(output, torch.full_like(output, 264))


ROWS = torch.ones(2, 4, 8)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((torch.ones(2, 8), torch.ones(2, 8)), r"input: expected \[tokens, k, hidden\]"),
        ((ROWS.int(), torch.ones(2, 8)), "input: expected .* of float16, bfloat16 or float32, got .*int32"),
        ((ROWS, torch.ones(3, 8)), r"output: expected \[2, 8\] of torch.float32 on cpu, got \[3, 8\]"),
        ((ROWS, torch.ones(2, 8).half()), "output: expected .*float32 on cpu, got .*float16"),
        ((torch.ones(2, 8, 4).mT, torch.ones(2, 8)), "input: expected elements side by side"),
        ((ROWS, torch.ones(2, 8), torch.ones(2, 3)), r"topk_weights: expected \[2, 4\] of float32"),
    ],
)
def test_wrong_arguments_are_refused(arguments, text):
    with pytest.raises(TensorMatchError, match=text):
        moe_sum(*arguments)


def test_shared_memory_is_refused():
    rows = torch.ones(2, 4, 8)
    with pytest.raises(ValueError, match="output shares memory with input"):
        moe_sum(rows, rows[:, 0])
    with pytest.raises(ValueError, match="rows of output share memory with each other"):
        moe_sum(rows, torch.ones(1, 8).expand(2, 8))
