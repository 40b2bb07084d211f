"""What wrong arguments get: the whole text, the same on every device, and outputs left alone."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from sgljit_core.errors import TensorMatchError

from .helpers import FP8, family

Call = dict[str, torch.Tensor]
Change = Callable[[Call], object]

ROWS = "Tensor match failed for {name}, {tensor} at quant/quant.cpp:LINE\n- Root cause: {cause}"
INPUT = "Tensor<3, 64>[strides=<64, 1>, dtype=float32, device={device}]"


def fp8(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.uint8).view(FP8)


# What is changed in a good call with 3 rows of 64 elements; the text behind the op's name, or that of the rows.
BOTH = {
    "input dtype": (
        lambda c: c.update(input=torch.zeros(3, 64, dtype=torch.float64)),
        ROWS.format(
            name="input",
            tensor="Tensor<3, 64>[strides=<64, 1>, dtype=float64, device={device}]",
            cause="DType mismatch: expected one of [float32, float16, bfloat16] but got float64",
        ),
    ),
    "output dtype": (
        lambda c: c.update(output_q=torch.zeros(3, 64, dtype=torch.uint8)),
        "output_q must be float8_e4m3fn, got uint8: Tensor<3, 64>[strides=<64, 1>, dtype=uint8, device={device}]",
    ),
    "scale dtype": (
        lambda c: c.update(output_s=torch.zeros(3, dtype=torch.bfloat16)),
        "output_s must be float32, got bfloat16: Tensor<3>[strides=<1>, dtype=bfloat16, device={device}]",
    ),
    "output shape": (
        lambda c: c.update(output_q=fp8(3, 32)),
        "output_q must have the shape of input: "
        "output_q is Tensor<3, 32>[strides=<32, 1>, dtype=float8_e4m3fn, device={device}], input is " + INPUT,
    ),
    "output rank": (
        lambda c: c.update(output_q=fp8(3, 64, 1)),
        "output_q must have the shape of input: "
        "output_q is Tensor<3, 64, 1>[strides=<64, 1, 1>, dtype=float8_e4m3fn, device={device}], input is " + INPUT,
    ),
    "scale apart": (
        lambda c: c.update(output_s=torch.zeros(3, 2)[:, 0]),
        "output_s must be contiguous: Tensor<3>[strides=<2>, dtype=float32, device={device}]",
    ),
    "input apart": (
        lambda c: c.update(input=torch.zeros(3, 64, 2)[..., 0]),
        ROWS.format(
            name="input",
            tensor="Tensor<3, 64>[strides=<128, 2>, dtype=float32, device={device}]",
            cause="Stride mismatch: expected the elements of a row side by side, at a stride of 1, but got 2",
        ),
    ),
    "output apart": (
        lambda c: c.update(output_q=fp8(64, 3).t()),
        ROWS.format(
            name="output_q",
            tensor="Tensor<3, 64>[strides=<1, 3>, dtype=float8_e4m3fn, device={device}]",
            cause="Stride mismatch: expected the elements of a row side by side, at a stride of 1, but got 3",
        ),
    ),
    "input at two strides": (
        lambda c: c.update(input=torch.zeros(2, 5, 70)[:, :3, :64], output_q=fp8(2, 3, 64), output_s=torch.zeros(2, 3)),
        ROWS.format(
            name="input",
            tensor="Tensor<2, 3, 64>[strides=<350, 70, 1>, dtype=float32, device={device}]",
            cause="Stride mismatch: expected all rows at one stride, 70, but got 350 for dimension 0",
        ),
    ),
    "output at two strides": (
        lambda c: c.update(input=torch.zeros(2, 3, 64), output_q=fp8(2, 5, 70)[:, :3, :64], output_s=torch.zeros(2, 3)),
        ROWS.format(
            name="output_q",
            tensor="Tensor<2, 3, 64>[strides=<350, 70, 1>, dtype=float8_e4m3fn, device={device}]",
            cause="Stride mismatch: expected all rows at one stride, 70, but got 350 for dimension 0",
        ),
    ),
}
PER_TENSOR = {
    **BOTH,
    "more than one scale": (
        lambda c: c.update(output_s=torch.zeros(3)),
        "output_s must have one element: Tensor<3>[strides=<1>, dtype=float32, device={device}]",
    ),
    "no scale": (
        lambda c: c.update(output_s=torch.zeros(0)),
        "output_s must have one element: Tensor<0>[strides=<1>, dtype=float32, device={device}]",
    ),
}
SCALES = (
    "output_s must have one element for each row of input, and the shape of input, with a last dimension of 1 or "
    "without it: output_s is "
)
PER_TOKEN = {
    **BOTH,
    "too few scales": (
        lambda c: c.update(output_s=torch.zeros(2)),
        SCALES + "Tensor<2>[strides=<1>, dtype=float32, device={device}], input is " + INPUT,
    ),
    "scales of another shape": (
        lambda c: c.update(output_s=torch.zeros(1, 3)),
        SCALES + "Tensor<1, 3>[strides=<3, 1>, dtype=float32, device={device}], input is " + INPUT,
    ),
    "a scale for each element": (
        lambda c: c.update(output_s=torch.zeros(3, 64)),
        SCALES + "Tensor<3, 64>[strides=<64, 1>, dtype=float32, device={device}], input is " + INPUT,
    ),
    "no dimension": (
        lambda c: c.update(input=torch.tensor(1.0), output_q=fp8(1)[0], output_s=torch.zeros(1)),
        "input must have at least one dimension: Tensor<>[strides=<>, dtype=float32, device={device}]",
    ),
}
CASES = [
    *(pytest.param("per_tensor_quant_fp8", *case, id=f"per tensor, {name}") for name, case in PER_TENSOR.items()),
    *(pytest.param("per_token_quant_fp8", *case, id=f"per token, {name}") for name, case in PER_TOKEN.items()),
]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device  # "cuda" with its index


def good_call(name: str) -> Call:
    scales = torch.full((3,) if name == "per_token_quant_fp8" else (1,), 7.0)
    return {"input": torch.ones(3, 64), "output_q": fp8(3, 64), "output_s": scales}


def on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy that keeps the strides."""
    moved = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return moved.copy_(tensor)


@pytest.mark.parametrize(("name", "change", "text"), CASES)
def test_a_call_that_does_not_match(name: str, change: Change, text: str, device: torch.device):
    call = good_call(name)
    change(call)
    if name == "per_tensor_quant_fp8" and call["output_s"].ndim == 2 and call["input"].ndim == 3:
        call["output_s"] = torch.zeros(1)
    call = {argument: on_device(value, device) for argument, value in call.items()}
    before = {argument: value.float() for argument, value in call.items()}
    with pytest.raises(TensorMatchError) as raised:
        getattr(family, name)(**call)
    text = text.format(device=device)
    separator = "(): " if text.startswith("Tensor match") else ": "
    wanted = re.escape(f"{name}{separator}{text}").replace("LINE", r"\d+")
    assert re.fullmatch(wanted, str(raised.value))
    for argument, value in call.items():
        assert torch.equal(value.float(), before[argument])


@pytest.mark.parametrize("narrow", ["input", "output_q"])
def test_rows_are_the_dimensions_that_are_contiguous_in_both(narrow: str, device: torch.device):
    """Each goes with a dense tensor: its rows have two dimensions in the one, and one in the other."""
    wide = "output_q" if narrow == "input" else "input"
    dtypes = {"input": torch.float32, "output_q": FP8}
    scale = torch.ones(1, device=device)

    def tensor(name: str, *strides: int) -> torch.Tensor:
        return on_device(torch.zeros(100).to(dtypes[name]).as_strided((2, 3, 4), strides), device)

    two, one = tensor(wide, 20, 4, 1), tensor(narrow, 24, 8, 1)
    family.per_tensor_quant_fp8(**{wide: two, narrow: tensor(narrow, 12, 4, 1)}, output_s=scale)
    family.per_tensor_quant_fp8(**{narrow: one, wide: tensor(wide, 12, 4, 1)}, output_s=scale)
    text = (
        rf"(?s)\(\): Tensor match failed for {wide}, .*expected all rows at one stride, 4, but got 20 for dimension 0$"
    )
    with pytest.raises(TensorMatchError, match=text):
        family.per_tensor_quant_fp8(**{wide: two, narrow: one}, output_s=scale)


@pytest.mark.parametrize("name", ["per_tensor_quant_fp8", "per_token_quant_fp8"])
def test_scales_between_elements(name: str):
    """One rule for every device; PyTorch makes such a tensor on the CPU alone."""
    call = good_call(name)
    count = call["output_s"].numel()
    call["output_s"] = torch.frombuffer(bytearray(4 * count + 8), dtype=torch.float32, offset=2, count=count)
    text = f"{name}: output_s: its address is not a multiple of its element size, 4 bytes: Tensor<{count}>"
    with pytest.raises(ValueError, match=f"^{text}"):
        getattr(family, name)(**call)
    assert (call["output_q"].float() == 0).all()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["per_tensor_quant_fp8", "per_token_quant_fp8"])
@pytest.mark.parametrize("stays", ["output_q", "output_s"])
def test_devices_mixed(stays: str, name: str):
    call = {key: value if key == stays else value.cuda() for key, value in good_call(name).items()}
    texts = {
        "output_q": r"(?s)for output_q, .*Device mismatch: expected cuda:0 but got cpu",
        "output_s": "output_s must be on the device of input, cuda:0, got cpu: Tensor<",
    }
    with pytest.raises(TensorMatchError, match=texts[stays]):
        getattr(family, name)(**call)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((3, fp8(3), torch.ones(1)), "argument 1 (input): expected tensor, got int"),
        ((torch.ones(3), None, torch.ones(1)), "argument 2 (output_q): expected tensor, got None"),
        ((torch.ones(3), fp8(3), 0.5), "argument 3 (output_s): expected tensor, got float"),
        ((torch.ones(3), fp8(3), torch.ones(1), "yes"), "argument 4 (is_static): expected bool, got str"),
    ],
)
def test_an_argument_of_another_type(arguments: tuple[object, ...], text: str):
    with pytest.raises(TypeError, match=re.escape(text)):
        family.per_tensor_quant_fp8(*arguments)


def shared(x: torch.Tensor, q: torch.Tensor, s: torch.Tensor, text: str, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}"):
        getattr(family, name)(x, q, s)


@pytest.mark.parametrize("name", ["per_tensor_quant_fp8", "per_token_quant_fp8"])
def test_arguments_that_share_memory(name: str):
    x = torch.ones(4, 64)
    rows = 4 if name == "per_token_quant_fp8" else 1
    s = torch.ones(rows)
    own = x.view(FP8)
    with_input, with_itself = (
        rf"rows of output_q share memory with each other or with other rows of {other}, at quant/quant\.cpp:\d+: "
        rf"output_q is Tensor<.*, {other} is Tensor<"
        for other in ("input", "output_q")
    )
    scale = name + ": output_s shares memory with {}: input is Tensor<.*, output_q is Tensor<.*output_s is "
    shared(x, own[:, :64], s, with_input, name)
    shared(x, own.flatten()[3 : 3 + 256].view(4, 64), s, with_input, name)
    shared(x, fp8(4, 64), x.flatten()[100 : 100 + rows], scale.format("input"), name)
    q = fp8(4, 64)
    shared(x, q, q.view(torch.float32).flatten()[:rows], scale.format("output_q"), name)
    shared(x, q[:1].expand(4, 64), s, with_itself, name)
    shared(x, q.as_strided((4, 64), (32, 1)), s, with_itself, name)
    assert torch.equal(x, torch.ones(4, 64))
    assert torch.equal(s, torch.ones(rows))
    # Columns of one buffer, side by side.
    buffer = torch.ones(4, 100)
    getattr(family, name)(buffer[:, :64], buffer.view(FP8)[:, 256 : 256 + 64], s)
    assert torch.equal(buffer[:, :64], torch.ones(4, 64))
