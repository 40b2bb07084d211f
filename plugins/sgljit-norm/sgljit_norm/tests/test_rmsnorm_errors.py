"""What wrong arguments of rmsnorm get: the whole text, the same on every device, and outputs left alone."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from sgljit_core import ops
from sgljit_core.errors import TensorMatchError

rmsnorm = ops["norm"].rmsnorm

Call = dict[str, torch.Tensor]
Change = Callable[[Call], object]


def strided(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, 2)[..., 0]


# What is changed in a good call with 3 tokens of 64 elements, the tensor that is printed, the root cause.
CASES = {
    "dtype": (
        lambda c: c.update(input=torch.zeros(3, 64, dtype=torch.int32)),
        "Tensor<3, 64>[strides=<64, 1>, dtype=int32, device={device}]",
        "DType mismatch: expected one of [float32, float16, bfloat16] but got int32",
    ),
    "rank 1": (
        lambda c: c.update(input=torch.zeros(64)),
        "Tensor<64>[strides=<1>, dtype=float32, device={device}]",
        "Dimension mismatch: expected 2 but got 1",
    ),
    "rank 0": (
        lambda c: c.update(input=torch.tensor(1.0)),
        "Tensor<>[strides=<>, dtype=float32, device={device}]",
        "Dimension mismatch: expected 2 but got 0",
    ),
    "rank 3": (
        lambda c: c.update(input=torch.zeros(1, 3, 64)),
        "Tensor<1, 3, 64>[strides=<192, 64, 1>, dtype=float32, device={device}]",
        "Dimension mismatch: expected 2 but got 3",
    ),
    "elements apart": (
        lambda c: c.update(input=strided(3, 64)),
        "Tensor<3, 64>[strides=<128, 2>, dtype=float32, device={device}]",
        "Size mismatch for stride#1: expected 1 but got 2",
    ),
    "weight length": (
        lambda c: c.update(weight=torch.zeros(32)),
        "Tensor<32>[strides=<1>, dtype=float32, device={device}]",
        "Size mismatch for shape#0('hidden_size'): expected 64 but got 32",
    ),
    "weight length, no token": (
        lambda c: c.update(input=torch.zeros(0, 64), out=torch.zeros(0, 64), weight=torch.zeros(32)),
        "Tensor<32>[strides=<1>, dtype=float32, device={device}]",
        "Size mismatch for shape#0('hidden_size'): expected 64 but got 32",
    ),
    "weight dtype": (
        lambda c: c.update(weight=torch.zeros(64, dtype=torch.float16)),
        "Tensor<64>[strides=<1>, dtype=float16, device={device}]",
        "DType mismatch: expected float32 but got float16",
    ),
    "weight rank": (
        lambda c: c.update(weight=torch.zeros(1, 64)),
        "Tensor<1, 64>[strides=<64, 1>, dtype=float32, device={device}]",
        "Dimension mismatch: expected 1 but got 2",
    ),
    "weight apart": (
        lambda c: c.update(weight=strided(64)),
        "Tensor<64>[strides=<2>, dtype=float32, device={device}]",
        "Stride mismatch: expected a contiguous tensor",
    ),
    "out tokens": (
        lambda c: c.update(out=torch.zeros(2, 64)),
        "Tensor<2, 64>[strides=<64, 1>, dtype=float32, device={device}]",
        "Size mismatch for shape#0('num_tokens'): expected 3 but got 2",
    ),
    "out hidden": (
        lambda c: c.update(out=torch.zeros(3, 32)),
        "Tensor<3, 32>[strides=<32, 1>, dtype=float32, device={device}]",
        "Size mismatch for shape#1('hidden_size'): expected 64 but got 32",
    ),
    "out dtype": (
        lambda c: c.update(out=torch.zeros(3, 64, dtype=torch.bfloat16)),
        "Tensor<3, 64>[strides=<64, 1>, dtype=bfloat16, device={device}]",
        "DType mismatch: expected float32 but got bfloat16",
    ),
    "out apart": (
        lambda c: c.update(out=strided(3, 64)),
        "Tensor<3, 64>[strides=<128, 2>, dtype=float32, device={device}]",
        "Size mismatch for stride#1: expected 1 but got 2",
    ),
}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device  # "cuda" with its index


def good_call() -> Call:
    return {"input": torch.ones(3, 64), "weight": torch.ones(64), "out": torch.full((3, 64), 7.0)}


def on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy that keeps the strides."""
    moved = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return moved.copy_(tensor)


@pytest.mark.parametrize(("change", "tensor", "cause"), CASES.values(), ids=CASES)
def test_a_call_that_does_not_match(change: Change, tensor: str, cause: str, device: torch.device):
    call = good_call()
    change(call)
    call = {name: on_device(value, device) for name, value in call.items()}
    before = call["out"].clone()
    with pytest.raises(TensorMatchError) as raised:
        rmsnorm(**call)
    text = re.escape(f"Tensor match failed for {tensor.format(device=device)} at ")
    text += r"\S*rmsnorm_args\.h:\d+" + re.escape(f"\n- Root cause: {cause}")
    assert re.fullmatch(text, str(raised.value))
    assert isinstance(raised.value, ValueError)
    assert isinstance(raised.value, RuntimeError)
    assert torch.equal(call["out"], before)


@pytest.mark.gpu
@pytest.mark.parametrize("stays", ["input", "weight", "out"])
def test_devices_mixed(stays: str):
    call = {name: value if name == stays else value.cuda() for name, value in good_call().items()}
    first, other = ("cpu", "cuda:0") if stays == "input" else ("cuda:0", "cpu")
    with pytest.raises(TensorMatchError, match=f"Root cause: Device mismatch: expected {first} but got {other}"):
        rmsnorm(**call)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((3, torch.ones(64)), "argument 1: expected tensor, got int"),
        ((torch.ones(3, 64), None), "argument 2: expected tensor, got None"),
        ((torch.ones(3, 64), torch.ones(64), "out"), "argument 3: expected tensor or None, got str"),
        ((torch.ones(3, 64), torch.ones(64), None, "small"), "argument 4: expected float, got str"),
        ((torch.ones(3, 64), torch.ones(64), None, None), "argument 4: expected float, got None"),
    ],
)
def test_an_argument_of_another_type(arguments: tuple[object, ...], text: str):
    with pytest.raises(TypeError, match=re.escape(text)):
        rmsnorm(*arguments)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(lambda b: (b[1:4, :64], b[0:3, :64]), id="out one row up"),
        pytest.param(lambda b: (b[:3, :64], b[:3, 1:65]), id="out one element on"),
        pytest.param(lambda b: (b[:3, 1:65], b[:3, :64]), id="out one element back"),
        pytest.param(lambda b: (b[:3, :64], b[0:6:2, :64]), id="another stride"),
        pytest.param(lambda b: (torch.ones(3, 64), b[:1, :64].expand(3, 64)), id="out one row thrice"),
        pytest.param(lambda b: (torch.ones(3, 64), b.as_strided((3, 64), (32, 1))), id="rows of out overlap"),
    ],
)
def test_rows_that_share_memory(rows: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]):
    buffer = torch.ones(8, 100)
    x, out = rows(buffer)
    with pytest.raises(ValueError, match=r"^rmsnorm: rows of out overlap each other or other rows of input: "):
        rmsnorm(x, torch.ones(64), out)
    assert torch.equal(buffer, torch.ones(8, 100))


@pytest.mark.parametrize("shape", [(0, 64), (3, 0), (0, 0)])
def test_nothing_to_do(shape: tuple[int, int], device: torch.device):
    x, weight = torch.empty(shape, device=device), torch.ones(shape[1], device=device)
    rmsnorm(x, weight)
    rmsnorm(x, weight, torch.empty(shape, device=device))
