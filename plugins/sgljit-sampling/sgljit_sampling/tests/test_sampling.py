"""The ops against float64, what is not a number, and what wrong arguments get: the same on every device."""

from __future__ import annotations

import pytest
import torch

from sgljit_core import ops
from sgljit_core.errors import TensorMatchError
from sgljit_sampling import reference
from sgljit_sampling.plugin import FAMILY

family = ops["sampling"]
NAN, INF = float("nan"), float("inf")
ROUNDED = {torch.float32: 2**-18, torch.float16: 2**-10, torch.bfloat16: 2**-7}
ones, zeros = torch.ones, torch.zeros


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device  # "cuda" with its index


@pytest.mark.parametrize("op", list(FAMILY.declared()))
@pytest.mark.parametrize(
    "dtype", [x if x is torch.bfloat16 else pytest.param(x, marks=pytest.mark.slow) for x in ROUNDED]
)
def test_it_agrees_with_float64(op, dtype, device):
    torch.manual_seed(0)
    samples = [sample for sample in FAMILY.declared()[op].samples(device) if sample["input"].dtype == dtype]
    assert samples
    for sample in samples:
        wanted = {name: x.clone() for name, x in sample.items()}
        getattr(reference, op)(**wanted)
        getattr(family, op)(**sample)
        close = ROUNDED.get(sample["output"].dtype, 0)
        atol = 2**-25 if sample["output"].dtype == torch.float16 else 0  # its least number
        torch.testing.assert_close(sample["output"], wanted["output"], rtol=close, atol=atol)


def softmax(rows, device):
    logits = torch.tensor(rows, device=device)
    family.softmax(logits, logits)
    return logits.cpu()


def argmax(rows, device, dtype=torch.float32):
    ids = torch.full((len(rows),), -1, device=device)
    family.argmax(torch.tensor(rows, device=device).to(dtype), ids)
    return ids.tolist()


def test_a_softmax_of_large_and_of_infinite_logits_is_that_of_pytorch(device):
    rows = [[3e38, 3e38, -3e38, 0], [-INF, 1, 1, -INF], [NAN, 1, 2, 3], [INF, 1, 2, 3], [-INF] * 4, [-1e5, 0, 0, -1e5]]
    torch.testing.assert_close(softmax(rows, device), torch.tensor(rows).softmax(-1), equal_nan=True)
    assert softmax([[-1.0]], device).tolist() == [[1]]


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float16, marks=pytest.mark.slow), torch.bfloat16])
def test_the_first_of_the_largest_elements_counts_and_nan_is_above_all(dtype, device):
    rows = [[1, 2, 2, 0], [0.0, -0.0, 0.0, -1], [-0.0, 0.0, -1, -1], [-INF] * 4, [1, NAN, INF, NAN], [-NAN, 0, 0, 0]]
    assert argmax(rows, device, dtype) == [1, 0, 0, 0, 1, 0]
    assert argmax([[-3.0], [NAN]], device, dtype) == [0, 0]


def test_rows_of_any_size(device):
    torch.manual_seed(0)
    for columns in (2, 3, 31, 33, 255, 2049, 4099, 16384, 40001):
        x = torch.randn(9, columns, device=device)
        at = torch.randint(columns, (9,), device=device)
        x[torch.arange(9, device=device), at] = 9
        ids, output = torch.empty(9, dtype=torch.int32, device=device), torch.empty_like(x)
        family.argmax(x, ids)
        assert torch.equal(ids.long(), at)
        family.softmax(x, output)
        torch.testing.assert_close(output, x.double().softmax(-1).float(), rtol=2**-18, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_begin_anywhere_between_two_vectors(dtype, device):
    """Alike and unlike in input and output; nothing beside the rows is written."""
    torch.manual_seed(0)
    for columns, gap, shift in [(257, 0, 5), (513, 1, 0), (1031, 3, 1), (8191, 0, 7), (50257, 8, 2)]:
        rows, stride = 7, columns + gap
        memory = torch.randn(rows * stride + shift, device=device).to(dtype)
        logits = memory[shift:].view(rows, stride)[:, :columns]
        wanted = logits.double().softmax(-1)
        for beside in (0, 1):
            guarded = torch.full((rows * stride + shift + beside,), NAN, device=device, dtype=dtype)
            output = guarded[shift + beside :].view(rows, stride)[:, :columns]
            family.softmax(logits, output)
            torch.testing.assert_close(output.double(), wanted, rtol=ROUNDED[dtype], atol=0)
            output.fill_(NAN)
            assert guarded.isnan().all()
        ids = torch.full((rows,), -1, device=device)
        family.argmax(logits, ids)
        assert torch.equal(logits.gather(1, ids[:, None])[:, 0], logits.amax(-1))


@pytest.mark.parametrize("rows", [1, 16, 17, 66, pytest.param(300, marks=pytest.mark.slow)])
def test_few_and_many_rows_of_a_vocabulary(rows, device):
    """On CUDA the number of blocks that share a row depends on how many rows there are."""
    torch.manual_seed(0)
    for vocabulary in (32000, 50257, 151936):
        x = torch.randn(rows, vocabulary, device=device)
        at = torch.randint(vocabulary, (rows,), device=device)
        x[torch.arange(rows, device=device), at] = 9
        ids, wanted = torch.empty(rows, dtype=torch.int64, device=device), x.double().softmax(-1).float()
        family.argmax(x, ids)
        assert torch.equal(ids, at)
        family.softmax(x, x)
        torch.testing.assert_close(x, wanted, rtol=2**-18, atol=0)


BAD = {
    "shape": ("softmax", ones(2, 8), ones(2, 7), "output", "for a row: expected 8 but got 7"),
    "rows": ("softmax", ones(2, 8), ones(3, 8), "output", "dimension 0: expected 2 but got 3"),
    "dtype": ("softmax", ones(2, 8).int(), ones(2, 8), "input", "DType mismatch"),
    "float8": ("softmax", ones(2, 8), ones(2, 8).to(torch.float8_e4m3fn), "output", "DType mismatch"),
    "gaps": ("softmax", ones(8, 2).t(), ones(2, 8), "input", "elements of a row side by side"),
    "no dimension": ("argmax", torch.tensor(1.0), zeros(1).long(), "input", "Dimension mismatch: expected at least 1"),
    "no vocabulary": (
        "argmax",
        ones(2, 0),
        zeros(2).long(),
        "input",
        "expected from 1 to 2147483647 elements but got 0",
    ),
    "dtype of ids": ("argmax", ones(2, 8), ones(2), "output", "expected one of .int32, int64. but got float32"),
    "short ids": ("argmax", ones(2, 8), zeros(2).short(), "output", "int32, int64. but got int16"),
    "shape of ids": ("argmax", ones(2, 8), zeros(3).long(), "output", "dimension 0: expected 2 but got 3"),
    "column of ids": ("argmax", ones(2, 8), zeros(2, 1).long(), "output", "Dimension mismatch: expected 1 but got 2"),
}


@pytest.mark.parametrize("case", BAD)
def test_tensors_that_do_not_fit_are_refused_with_the_cause(case, device):
    op, logits, output, name, text = BAD[case]
    logits = torch.empty_strided(logits.shape, logits.stride(), dtype=logits.dtype, device=device).copy_(logits)
    with pytest.raises(TensorMatchError, match=rf"(?s)^\w+\(\): Tensor match failed for {name}, Tensor<.*{text}"):
        getattr(family, op)(logits, output.to(device))


def test_shared_memory_is_refused(device):
    x = ones(3, 8, device=device)
    with pytest.raises(ValueError, match=r"rows of output share memory with .* of input"):
        family.softmax(x[:2], x[1:])
    with pytest.raises(ValueError, match="rows of output share memory"):
        family.argmax(x, zeros(1, dtype=torch.int64, device=device).expand(3))


@pytest.mark.gpu
def test_tensors_on_two_devices_are_refused():
    with pytest.raises(TensorMatchError, match=r"(?s)for output, Tensor<.*Device mismatch: expected cuda"):
        family.argmax(ones(2, 8, device="cuda"), zeros(2).long())
