"""The sum of experts against float64, and what wrong arguments get: the same on every device."""

from __future__ import annotations

import pytest
import torch

from sgljit_core import ops
from sgljit_core.errors import TensorMatchError
from sgljit_moe import reference
from sgljit_moe.plugin import FAMILY

moe_sum = ops["moe"].moe_sum
ROUNDED = {torch.float32: 2**-20, torch.float16: 2**-10, torch.bfloat16: 2**-7}
ones = torch.ones


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device  # "cuda" with its index


def test_it_agrees_with_float64(device):
    torch.manual_seed(0)
    for sample in FAMILY.declared()["moe_sum"].samples(device):
        wanted = {**sample, "output": torch.empty_like(sample["output"])}
        sample["output"][:] = torch.nan
        reference.moe_sum(**wanted)
        moe_sum(**sample)
        close = ROUNDED[sample["output"].dtype]
        torch.testing.assert_close(sample["output"], wanted["output"], rtol=close, atol=close)


def test_it_adds_in_float32(device):
    """In bfloat16, 256 + 1 is 256."""
    rows = ones(1, 9, 80, device=device).bfloat16()
    rows[:, 0] = 256
    output = torch.empty(1, 80, device=device, dtype=torch.bfloat16)
    moe_sum(rows, output)
    assert torch.equal(output, torch.full_like(output, 264))


@pytest.mark.parametrize("of_weights", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_weight_of_any_dtype_is_taken_as_it_is(device, of_weights):
    """Numbers of experts with a kernel of their own and without; weights that are apart, beside what is no number."""
    torch.manual_seed(0)
    for tokens, k, hidden in ((1, 8, 2048), (5, 4, 33), (3, 19, 100), (70, 2, 64)):
        rows = torch.randn(tokens, k, hidden, device=device).bfloat16()
        memory = torch.full((tokens, 2 * k), torch.nan, device=device, dtype=of_weights)
        memory[:, ::2] = torch.rand(tokens, k, device=device) + 0.1
        output = torch.full((tokens, hidden), torch.nan, device=device, dtype=torch.bfloat16)
        moe_sum(rows, output, memory[:, ::2], routed_scaling_factor=1.5)
        wanted = (rows.double() * memory[:, ::2].double()[..., None]).sum(1) * 1.5
        torch.testing.assert_close(output.double(), wanted, rtol=2**-8, atol=2**-18)


def test_what_is_not_a_number_stays_in_its_column(device):
    rows = ones(2, 2, 40, device=device)
    rows[0, 1, 3] = float("nan")
    rows[1, 0, 5] = float("inf")
    output = torch.empty(2, 40, device=device)
    moe_sum(rows, output, ones(2, 2, device=device))
    assert output.isnan().nonzero().tolist() == [[0, 3]]
    assert output.isinf().nonzero().tolist() == [[1, 5]]


BAD = {
    "dimensions": ({"input": ones(2, 8)}, "input", "Dimension mismatch: expected 3 but got 2"),
    "tokens": ({"output": ones(3, 8)}, "output", "dimension 0: expected 2 but got 3"),
    "hidden": ({"output": ones(2, 7)}, "output", "dimension 1: expected 8 but got 7"),
    "dimensions of output": ({"output": ones(2, 1, 8)}, "output", "Dimension mismatch: expected 2 but got 3"),
    "dtype": ({"output": ones(2, 8).half()}, "output", "expected float32, the dtype of input, but got float16"),
    "integers": ({"input": ones(2, 4, 8).int()}, "input", "DType mismatch"),
    "gaps": ({"input": ones(2, 8, 4).mT}, "input", "elements of a row side by side"),
    "experts": ({"topk_weights": ones(2, 3)}, "topk_weights", "dimension 1: expected 4 but got 3"),
    "weights": (
        {"topk_weights": ones(2, 4).double()},
        "topk_weights",
        "expected one of .float32, float16, bfloat16. but got float64",
    ),
    "integers for weights": ({"topk_weights": ones(2, 4).int()}, "topk_weights", "bfloat16. but got int32"),
}


@pytest.mark.parametrize("case", BAD)
def test_tensors_that_do_not_fit_are_refused_with_the_cause(case, device):
    changed, name, text = BAD[case]
    arguments = {"input": ones(2, 4, 8), "output": ones(2, 8), **changed}
    apart = {
        key: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device).copy_(x)
        for key, x in arguments.items()
    }
    with pytest.raises(TensorMatchError, match=rf"(?s)^\w+\(\): Tensor match failed for {name}, Tensor<.*{text}"):
        moe_sum(**apart)


def test_shared_memory_is_refused(device):
    rows, output = ones(2, 4, 8, device=device), ones(2, 8, device=device)
    with pytest.raises(ValueError, match="output shares memory with input"):
        moe_sum(rows, rows[:, 0])
    with pytest.raises(ValueError, match="output shares memory with topk_weights"):
        moe_sum(rows, output, output[:, :4])
    with pytest.raises(ValueError, match="rows of output share memory with each other"):
        moe_sum(rows, output[:1].expand(2, 8))


@pytest.mark.gpu
def test_a_tensor_on_another_device_is_refused():
    with pytest.raises(TensorMatchError, match=r"(?s)for output, Tensor<.*Device mismatch: expected cuda"):
        moe_sum(ones(2, 4, 8, device="cuda"), ones(2, 8))
