"""Products of rows with matrices of experts against float64, and what wrong arguments get: the same on every device."""

from __future__ import annotations

import pytest
import torch

from sgljit_core import ops
from sgljit_core.errors import TensorMatchError
from sgljit_moe import reference
from sgljit_moe.plugin import FAMILY

expert_matvec = ops["moe"].expert_matvec
ROUNDED = {torch.float32: 2**-18, torch.float16: 2**-10, torch.bfloat16: 2**-7}
NAN, INFINITY = float("nan"), float("inf")
ones = torch.ones
LAYOUTS = ["rows", "columns"]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device  # "cuda" with its index


def laid(weight: torch.Tensor, layout: str) -> torch.Tensor:
    """The same matrices with the elements of each row side by side, or of each column."""
    return weight.contiguous() if layout == "rows" else weight.mT.contiguous().mT


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on a device, with the gaps that ``Tensor.to`` leaves out."""
    return tensor.new_empty(0, device=device).new_empty_strided(tensor.shape, tensor.stride()).copy_(tensor)


def poisoned(like: torch.Tensor) -> torch.Tensor:
    return torch.full_like(like, NAN)


def test_it_agrees_with_float64(device):
    torch.manual_seed(0)
    for sample in FAMILY.declared()["expert_matvec"].samples(device):
        output, weight = sample["output"], sample["weight"]
        wanted, output[:] = torch.empty_like(output), NAN
        reference.expert_matvec(**{**sample, "output": wanted})
        expert_matvec(**sample)
        close = ROUNDED[output.dtype]
        torch.testing.assert_close(output, wanted, rtol=close, atol=close * max(1, weight.shape[2]) ** 0.5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ROUNDED, ids=str)
def test_sizes_of_models_and_odd_ones(device, dtype, layout):
    """Experts that several rows have; a matrix of one row and of one column; sizes of no whole word, tile or step."""
    torch.manual_seed(0)
    for m, n in ((1536, 2048), (2048, 768), (2880, 2880), (1, 513), (513, 1), (65, 511), (64, 512), (8, 5000), (7, 3)):
        weight = laid(torch.randn(3, m, n, device=device).to(dtype), layout)
        x = torch.randn(4, n, device=device).to(dtype)
        ids = torch.tensor([2, 0, 2, 1], device=device)
        output = poisoned(torch.empty(4, m, device=device, dtype=dtype))
        expert_matvec(x, weight, ids, output)
        wanted = (weight[ids].double() @ x.double()[..., None])[..., 0]
        torch.testing.assert_close(output.double(), wanted, rtol=ROUNDED[dtype], atol=ROUNDED[dtype] * n**0.5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_adds_in_float32(device, layout):
    """In bfloat16, 256 + 1 is 256."""
    x = ones(1, 9, device=device).bfloat16()
    x[:, 0] = 256
    output = poisoned(torch.empty(1, 80, device=device, dtype=torch.bfloat16))
    expert_matvec(x, laid(ones(1, 80, 9, device=device).bfloat16(), layout), ones(1, device=device).int() - 1, output)
    assert torch.equal(output, torch.full_like(output, 264))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_not_a_number_stays_in_its_row(device, layout):
    weight = ones(2, 40, 16, device=device)
    weight[0, 3, 1], weight[0, 5, 2], weight[1] = NAN, INFINITY, NAN
    output = poisoned(torch.empty(2, 40, device=device))
    expert_matvec(ones(2, 16, device=device), laid(weight, layout), torch.zeros(2, device=device).long(), output)
    assert output.isnan().nonzero().tolist() == [[0, 3], [1, 3]]
    assert output.isinf().nonzero().tolist() == [[0, 5], [1, 5]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_but_the_output_is_written(device, layout):
    both = torch.full((5, 3 * 33), 7.0, device=device)
    weight = laid(torch.randn(2, 33, 20, device=device), layout)
    expert_matvec(ones(3, 20, device=device), weight, torch.tensor([1, 0, 1], device=device), both[1:4, 33:66])
    both[1:4, 33:66] = 7
    assert (both == 7).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ROUNDED, ids=str)
def test_a_bias_is_added_before_the_one_rounding(device, dtype, layout):
    """Rows of the bias that are apart, beside what is no number; sizes of no whole word, tile or step."""
    torch.manual_seed(0)
    for m, n in ((1536, 2048), (2880, 2880), (1, 513), (513, 1), (65, 511), (7, 3), (5, 0)):
        weight = laid(torch.randn(3, m, n, device=device).to(dtype), layout)
        memory = torch.full((3, m + 5), NAN, device=device, dtype=dtype)
        memory[:, 2:-3] = 64 * torch.randn(3, m, device=device)
        x = torch.randn(4, n, device=device).to(dtype)
        ids = torch.tensor([2, 0, 2, 1], device=device)
        output = poisoned(torch.empty(4, m, device=device, dtype=dtype))
        expert_matvec(x, weight, ids, output, memory[:, 2:-3])
        wanted = (weight[ids].double() @ x.double()[..., None])[..., 0] + memory[ids, 2:-3].double()
        torch.testing.assert_close(output.double(), wanted, rtol=ROUNDED[dtype] / 2, atol=ROUNDED[torch.float32] * n)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_bias_and_a_product_that_cancel_leave_what_rounding_would_lose(device, layout):
    """The product is 257, which bfloat16 has not."""
    x = ones(2, 257, device=device).bfloat16()
    bias = torch.tensor([[-256.0] * 40, [-257.0] * 40], device=device).bfloat16()
    output = poisoned(torch.empty(2, 40, device=device, dtype=torch.bfloat16))
    ids = torch.tensor([1, 0], device=device)
    expert_matvec(x, laid(ones(2, 40, 257, device=device).bfloat16(), layout), ids, output, bias=bias)
    assert output.unique(dim=1).tolist() == [[257 + bias[1, 0].item()], [1]]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("tokens", "k"), [(1, 1), (1, 8), (5, 1), (5, 4), (3, 7), (0, 4), (3, 0)])
@pytest.mark.parametrize("is_biased", [False, True])
def test_each_row_is_for_its_neighbouring_products(device, tokens, k, is_biased, layout):
    """Rows of x that are apart, beside what is no number."""
    torch.manual_seed(0)
    m, n, dtype = 70, 600, torch.bfloat16
    weight = laid(torch.randn(6, m, n, device=device).to(dtype), layout)
    bias = torch.randn(6, m, device=device).to(dtype) if is_biased else None
    memory = torch.full((tokens, n + 16), NAN, device=device, dtype=dtype)
    memory[:, 8:-8] = torch.randn(tokens, n, device=device)
    ids = torch.randint(6, (tokens, k), device=device).int()
    both = torch.full((tokens * k, m + 3), NAN, device=device, dtype=dtype)
    expert_matvec(memory[:, 8:-8], weight, ids, both[:, 1:-2], bias)
    one_by_one = poisoned(torch.empty(tokens * k, m, device=device, dtype=dtype))
    expert_matvec(memory[:, 8:-8].repeat_interleave(k, 0), weight, ids.flatten(), one_by_one, bias)
    assert torch.equal(both[:, 1:-2], one_by_one)
    assert both[:, [0, -2, -1]].isnan().all()
    wanted = torch.empty_like(one_by_one)
    reference.expert_matvec(memory[:, 8:-8], weight, ids, wanted, bias)
    torch.testing.assert_close(one_by_one, wanted, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_row_may_serve_all_tokens(device, layout):
    torch.manual_seed(0)
    weight, row = laid(torch.randn(3, 9, 40, device=device), layout), torch.randn(1, 40, device=device)
    ids = torch.tensor([[2, 1], [0, 2], [1, 1]], device=device)
    output = poisoned(torch.empty(6, 9, device=device))
    expert_matvec(row.expand(3, 40), weight, ids, output)
    wanted = weight[ids.flatten()].double() @ row[0].double()
    torch.testing.assert_close(output.double(), wanted, rtol=2**-18, atol=2**-16)


BAD = {
    "dimensions of x": ({"x": ones(1, 3, 16)}, "x", "Dimension mismatch: expected 2 but got 3"),
    "dimensions of weight": ({"weight": ones(8, 16)}, "weight", "Dimension mismatch: expected 3 but got 2"),
    "rows": ({"x": ones(2, 16)}, "", "expected [23] .*but got [23]"),
    "size": ({"x": ones(3, 15)}, "", "expected 1[56] .*but got 1[56]"),
    "product": ({"output": ones(3, 7)}, "output", "expected 8 but got 7"),
    "dtype of x": ({"x": ones(3, 16).half()}, "", "expected float16, the dtype of x, but got float32"),
    "integers": ({"x": ones(3, 16).int()}, "x", "DType mismatch"),
    "dtype of weight": (
        {"weight": ones(4, 8, 16).half()},
        "weight",
        "expected float32, the dtype of x, but got float16",
    ),
    "dtype of output": ({"output": ones(3, 8).half()}, "output", "expected float32, the dtype of x, but got float16"),
    "dtype of ids": ({"expert_ids": ones(3)}, "expert_ids", "expected one of .int32, int64. but got float32"),
    "dimensions of ids": ({"expert_ids": torch.zeros(3, 1, 1).long()}, "expert_ids", "expected 1 or 2 but got 3"),
    "tokens of ids": ({"expert_ids": torch.zeros(2, 2).long()}, "expert_ids", "dimension 0: expected 3 but got 2"),
    "products of ids": ({"expert_ids": torch.zeros(3, 2).long()}, "", "expected [36] .*but got [36]"),
    "ids apart": ({"expert_ids": torch.zeros(3, 4).long()[:, :1]}, "expert_ids", "at a stride of 1, but got 4"),
    "gaps between ids of tokens": (
        {"expert_ids": torch.zeros(3, 4).long()[:, :2], "output": ones(6, 8)},
        "expert_ids",
        "rows side by side, at a stride of 2, but got 4",
    ),
    "dimensions of the bias": ({"bias": ones(8)}, "bias", "Dimension mismatch: expected 2 but got 1"),
    "experts of the bias": ({"bias": ones(5, 8)}, "bias", "dimension 0: expected 4 but got 5"),
    "elements of the bias": ({"bias": ones(4, 7)}, "bias", "dimension 1: expected 8 but got 7"),
    "dtype of the bias": ({"bias": ones(4, 8).half()}, "bias", "expected float32, the dtype of x, but got float16"),
    "gaps in the bias": ({"bias": ones(4, 16)[:, ::2]}, "bias", "elements of a row side by side"),
    "gaps in ids": ({"expert_ids": torch.zeros(6).long()[::2]}, "expert_ids", "Stride mismatch"),
    "gaps in x": ({"x": ones(3, 32)[:, ::2]}, "x", "elements of a row side by side"),
    "gaps in weight": ({"weight": ones(4, 16, 32)[:, ::2, ::2]}, "weight", "elements of a row side by side"),
    "gaps in output": ({"output": ones(3, 16)[:, ::2]}, "output", "elements of a row side by side"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", BAD)
def test_tensors_that_do_not_fit_are_refused_with_the_cause(case, layout, device):
    changed, name, cause = BAD[case]
    given = {"x": ones(3, 16), "weight": ones(4, 8, 16), "expert_ids": torch.zeros(3).long(), "output": ones(3, 8)}
    arguments = {key: moved(value, device) for key, value in {**given, **changed}.items()}
    arguments |= {} if case.endswith("weight") else {"weight": laid(arguments["weight"], layout)}
    with pytest.raises(TensorMatchError, match=rf"(?s)failed for {name}.*{cause}"):
        expert_matvec(**arguments)
    assert (arguments["output"] == 1).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("wrong", [-1, 4])
def test_an_id_of_no_expert_is_refused(wrong, layout):
    ids, output = torch.tensor([0, wrong, 3]), ones(3, 8)
    for one in (ids, ids[None]):
        with pytest.raises(TensorMatchError, match=rf"(?s)expert_ids.*element 1 is {wrong}, and weight has 4 rows"):
            expert_matvec(ones(one.shape[0], 16), laid(ones(4, 8, 16), layout), one, output, ones(4, 8))
    assert (output == 1).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_shared_memory_is_refused(device, layout):
    x, weight = ones(3, 16, device=device), laid(ones(4, 8, 16, device=device), layout)
    memory = torch.zeros(3, 8, device=device)
    ids = memory.flatten()[:6].view(torch.int64)
    of_weight = weight.flatten()[:24].view(3, 8) if layout == "rows" else weight.mT[0, :3]
    for output in (x[:, :8], of_weight, memory, ones(1, 8, device=device).expand(3, 8)):
        with pytest.raises(ValueError, match=r"shares? memory with"):
            expert_matvec(x, weight, ids, output)
    bias, none = ones(6, 8, device=device), torch.zeros(3, 1, device=device).long()
    with pytest.raises(ValueError, match=r"shares? memory with .*bias"):
        expert_matvec(x, weight, none, bias[3:], bias[:4])
    expert_matvec(x[:1], weight, none.view(1, 3), bias[3:], bias[:3].repeat(2, 1)[:4])
    square = laid(ones(4, 16, 16, device=device), layout)
    for pairs, output in ((none, x), (torch.zeros(1, 3, device=device).long(), x)):
        with pytest.raises(ValueError, match=r"shares? memory with"):
            expert_matvec(x[: len(pairs)], square, pairs, output)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["x", "weight", "expert_ids", "output", "bias"])
def test_a_tensor_on_another_device_is_refused(name, layout):
    given = {"x": ones(3, 16), "weight": ones(4, 8, 16), "expert_ids": torch.zeros(3).long(), "output": ones(3, 8)}
    given["bias"] = ones(4, 8)
    arguments = {key: value if key == name else value.cuda() for key, value in given.items()}
    arguments["weight"] = laid(arguments["weight"], layout)
    with pytest.raises(TensorMatchError, match="Device mismatch"):
        expert_matvec(**arguments)
