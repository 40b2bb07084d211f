"""What wrong arguments get: the whole text, the same on every device, and outputs left alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sgljit_core import ops
from sgljit_core.errors import TensorMatchError

from .helpers import MUTATES, OPS, check, make

norm = ops["norm"]

Call = dict[str, Any]
Rows = Callable[[torch.Tensor], Call]

OUT_OPS = [op for op in OPS if "out" in MUTATES[op]]
ADD_OPS = [op for op in OPS if "_add_" in op]
TWO_NORMS = [op for op in ADD_OPS if "norm_add_" in op]
HEAD_OPS = [op for op in OPS if op.endswith("qknorm")]
ALL_HEADS = "fused_inplace_qknorm_across_heads"


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype)


def strided(*shape: int) -> torch.Tensor:
    """Every element 2 apart."""
    return torch.zeros(*shape, 2)[..., 0]


def good_call(op: str) -> Call:
    if op in HEAD_OPS:
        return {"q": zeros(3, 4, 64), "k": zeros(3, 2, 64), "q_weight": zeros(64), "k_weight": zeros(64)}
    if op == ALL_HEADS:
        return {"q": zeros(3, 256), "k": zeros(3, 128), "q_weight": zeros(256), "k_weight": zeros(128)}
    if op in ADD_OPS:
        call = {"input": zeros(3, 64), "residual": zeros(3, 64), "weight": zeros(64)}
        return call | ({"next_weight": zeros(64)} if op in TWO_NORMS else {})
    call = {"input": zeros(3, 64), "weight": zeros(64), "out": torch.full((3, 64), 7.0)}
    return call | ({"bias": zeros(64)} if op == "layernorm" else {})


DOUBT = r"\. Rows with different strides must not overlap, and rows that cannot be proven disjoint count as overlapping"
APART = "Stride mismatch: expected the elements of a row side by side, at a stride of 1, but got 2"

INPUT = {
    "dtype": (
        {"input": zeros(3, 64, dtype=torch.int32)},
        "Tensor<3, 64>[strides=<64, 1>, dtype=int32",
        "DType mismatch: expected one of [float32, float16, bfloat16] but got int32",
    ),
    "elements apart": (
        {"input": strided(3, 64)},
        "Tensor<3, 64>[strides=<128, 2>, dtype=float32",
        APART,
    ),
}


def rank(expected: str, *shapes: tuple[int, ...]) -> dict[str, tuple[Call, str, str]]:
    """Inputs of too few or too many dimensions."""
    tensors = {len(shape): torch.zeros(shape) for shape in shapes}
    return {
        f"rank {dims}": (
            {"input": tensor},
            f"Tensor<{', '.join(map(str, tensor.shape))}>[strides=<{', '.join(map(str, tensor.stride()))}>, "
            "dtype=float32",
            f"Dimension mismatch: expected {expected} but got {dims}",
        )
        for dims, tensor in tensors.items()
    }


def vector(name: str) -> dict[str, tuple[Call, str, str]]:
    """What may be wrong with a weight or a bias."""
    return {
        f"{name} length": (
            {name: zeros(32)},
            "Tensor<32>[strides=<1>, dtype=float32",
            "Size mismatch for a row: expected 64 but got 32",
        ),
        f"{name} dtype": (
            {name: zeros(64, dtype=torch.float16)},
            "Tensor<64>[strides=<1>, dtype=float16",
            "DType mismatch: expected float32, the dtype of input, but got float16",
        ),
        f"{name} rank": (
            {name: zeros(1, 64)},
            "Tensor<1, 64>[strides=<64, 1>, dtype=float32",
            "Dimension mismatch: expected 1 but got 2",
        ),
        f"{name} apart": (
            {name: strided(64)},
            "Tensor<64>[strides=<2>, dtype=float32",
            APART,
        ),
    }


def second(name: str, tokens: str) -> dict[str, tuple[Call, str, str]]:
    """What may be wrong with out or residual; ``tokens`` is the cause where it has two rows."""
    return {
        f"{name} tokens": (
            {name: zeros(2, 64)},
            "Tensor<2, 64>[strides=<64, 1>, dtype=float32",
            tokens,
        ),
        f"{name} hidden": (
            {name: zeros(3, 32)},
            "Tensor<3, 32>[strides=<32, 1>, dtype=float32",
            "Size mismatch for a row: expected 64 but got 32",
        ),
        f"{name} dtype": (
            {name: zeros(3, 64, dtype=torch.bfloat16)},
            "Tensor<3, 64>[strides=<64, 1>, dtype=bfloat16",
            "DType mismatch: expected float32, the dtype of input, but got bfloat16",
        ),
        f"{name} apart": (
            {name: strided(3, 64)},
            "Tensor<3, 64>[strides=<128, 2>, dtype=float32",
            APART,
        ),
    }


HEADS = {
    "dtype": (
        {"q": zeros(3, 4, 64, dtype=torch.int64)},
        "Tensor<3, 4, 64>[strides=<256, 64, 1>, dtype=int64",
        "DType mismatch: expected one of [float32, float16, bfloat16] but got int64",
    ),
    "rank 1": (
        {"q": zeros(64)},
        "Tensor<64>[strides=<1>, dtype=float32",
        "Dimension mismatch: expected 3 but got 1",
    ),
    "rank 4": (
        {"q": zeros(1, 3, 4, 64)},
        "Tensor<1, 3, 4, 64>[strides=<768, 256, 64, 1>, dtype=float32",
        "Dimension mismatch: expected 3 but got 4",
    ),
    "elements apart": (
        {"q": strided(3, 4, 64)},
        "Tensor<3, 4, 64>[strides=<512, 128, 2>, dtype=float32",
        "Stride mismatch: expected the elements of a row side by side, but got a stride of 2",
    ),
    "head_dim": (
        {"head_dim": 32},
        "Tensor<3, 4, 64>[strides=<256, 64, 1>, dtype=float32",
        "Size mismatch for head_dim: expected 32 but got 64",
    ),
    "k tokens": (
        {"k": zeros(2, 2, 64)},
        "Tensor<2, 2, 64>[strides=<128, 64, 1>, dtype=float32",
        "Size mismatch for num_tokens: expected 3 but got 2",
    ),
    "k head_dim": (
        {"k": zeros(3, 2, 32)},
        "Tensor<3, 2, 32>[strides=<64, 32, 1>, dtype=float32",
        "Size mismatch for head_dim: expected 64 but got 32",
    ),
    "k dtype": (
        {"k": zeros(3, 2, 64, dtype=torch.float16)},
        "Tensor<3, 2, 64>[strides=<128, 64, 1>, dtype=float16",
        "DType mismatch: expected float32, the dtype of q, but got float16",
    ),
    "q_weight length": (
        {"q_weight": zeros(32)},
        "Tensor<32>[strides=<1>, dtype=float32",
        "Size mismatch for a row: expected 64 but got 32",
    ),
    "k_weight dtype": (
        {"k_weight": zeros(64, dtype=torch.bfloat16)},
        "Tensor<64>[strides=<1>, dtype=bfloat16",
        "DType mismatch: expected float32, the dtype of q, but got bfloat16",
    ),
    "k_weight apart": (
        {"k_weight": strided(64)},
        "Tensor<64>[strides=<2>, dtype=float32",
        "Stride mismatch: expected the elements of a row side by side, at a stride of 1, but got 2",
    ),
}

ALL_HEADS_CASES = {
    "rank": (
        {"q": zeros(3, 4, 64)},
        "Tensor<3, 4, 64>[strides=<256, 64, 1>, dtype=float32",
        "Dimension mismatch: expected 2 but got 3",
    ),
    "k tokens": (
        {"k": zeros(2, 128)},
        "Tensor<2, 128>[strides=<128, 1>, dtype=float32",
        "Size mismatch for num_tokens: expected 3 but got 2",
    ),
    "k dtype": (
        {"k": zeros(3, 128, dtype=torch.float16)},
        "Tensor<3, 128>[strides=<128, 1>, dtype=float16",
        "DType mismatch: expected float32, the dtype of q, but got float16",
    ),
    "q_weight length": (
        {"q_weight": zeros(64)},
        "Tensor<64>[strides=<1>, dtype=float32",
        "Size mismatch for a row: expected 256 but got 64",
    ),
    "k_weight of q's length": (
        {"k_weight": zeros(256)},
        "Tensor<256>[strides=<1>, dtype=float32",
        "Size mismatch for a row: expected 128 but got 256",
    ),
}

ROWS_APART = {
    "rows at two strides": (
        {"input": zeros(3, 2, 64).transpose(0, 1)},
        "Tensor<2, 3, 64>[strides=<64, 128, 1>, dtype=float32",
        "Stride mismatch: expected all rows at one stride, 128, but got 64 for dimension 0",
    ),
}
OTHER_SHAPES = {  # with as many rows
    "out of another rank": (
        {"out": zeros(1, 3, 64)},
        "Tensor<1, 3, 64>[strides=<192, 64, 1>, dtype=float32",
        "Dimension mismatch: expected 2 but got 3",
    ),
    "out of another shape": (
        {"out": zeros(2, 3, 64), "input": zeros(3, 2, 64)},
        "Tensor<2, 3, 64>[strides=<192, 64, 1>, dtype=float32",
        "Size mismatch for dimension 0: expected 3 but got 2",
    ),
}
OUT = {**second("out", "Size mismatch for dimension 0: expected 3 but got 2"), **OTHER_SHAPES}
RESIDUAL = second("residual", "Size mismatch for the number of rows: expected 3 but got 2")
OUT_CASES = {**INPUT, **rank("at least 2", (), (64,)), **ROWS_APART, **vector("weight"), **OUT}
ADD_CASES = {**INPUT, **rank("2", (), (64,), (1, 3, 64)), **vector("weight"), **RESIDUAL}

CASES = [
    *((op, name, case) for op in OUT_OPS for name, case in OUT_CASES.items()),
    *(("layernorm", name, case) for name, case in vector("bias").items()),
    *((op, name, case) for op in ADD_OPS for name, case in ADD_CASES.items()),
    *((op, name, case) for op in TWO_NORMS for name, case in vector("next_weight").items()),
    *((op, name, case) for op in HEAD_OPS for name, case in HEADS.items()),
    *((ALL_HEADS, name, case) for name, case in ALL_HEADS_CASES.items()),
]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device  # "cuda" with its index


def on_device(value: object, device: torch.device) -> object:
    """A copy that keeps the strides."""
    if not isinstance(value, torch.Tensor):
        return value
    moved = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    return moved.copy_(value)


@pytest.mark.parametrize(("op", "case"), [(op, case) for op, _, case in CASES], ids=[f"{o}-{n}" for o, n, _ in CASES])
def test_a_call_that_does_not_match(op: str, case: tuple[Call, str, str], device: torch.device):
    change, tensor, cause = case
    call = {name: on_device(value, device) for name, value in {**good_call(op), **change}.items()}
    before = {name: value.clone() for name, value in call.items() if isinstance(value, torch.Tensor)}
    with pytest.raises(TensorMatchError) as raised:
        getattr(norm, op)(**call)
    name = "q" if "head_dim" in change else next(iter(change))  # the tensor at fault
    text = re.escape(f"{op}(): Tensor match failed for {name}, {tensor}, device={device}] at ")
    text += r"norm/\w+\.cpp:\d+" + re.escape(f"\n- Root cause: {cause}")
    assert re.fullmatch(text, str(raised.value))
    assert isinstance(raised.value, ValueError)
    assert isinstance(raised.value, RuntimeError)
    for name, value in before.items():
        assert torch.equal(call[name], value)


@pytest.mark.parametrize("op", OPS)
def test_a_call_with_no_token_is_checked(op: str):
    call = {name: value[:0] if name in MUTATES[op] else value for name, value in good_call(op).items()}
    weight = "k_weight" if "qknorm" in op else "next_weight" if op in TWO_NORMS else "weight"
    with pytest.raises(TensorMatchError, match=r"Size mismatch for (shape#0\(.*\)|a row): expected \d+ but got 31"):
        getattr(norm, op)(**{**call, weight: zeros(31)})


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS)
def test_devices_mixed(op: str):
    good = {name: value for name, value in good_call(op).items() if isinstance(value, torch.Tensor)}
    first = next(iter(good))
    for stays in good:
        call = {name: value if name == stays else value.cuda() for name, value in good.items()}
        expected, got = ("cpu", "cuda:0") if stays == first else ("cuda:0", "cpu")
        with pytest.raises(TensorMatchError, match=f"Root cause: Device mismatch: expected {expected} but got {got}"):
            getattr(norm, op)(**call)


@pytest.mark.parametrize(
    ("op", "arguments", "text"),
    [
        ("rmsnorm", (3, zeros(64)), "rmsnorm(): argument 1 (input): expected tensor, got int"),
        ("rmsnorm", (zeros(3, 64), None), "argument 2 (weight): expected tensor, got None"),
        ("rmsnorm", (zeros(3, 64), zeros(64), "out"), "argument 3 (out): expected tensor or None, got str"),
        ("rmsnorm", (zeros(3, 64), zeros(64), None, "small"), "argument 4 (eps): expected float, got str"),
        ("gemma_rmsnorm", (zeros(3, 64), zeros(64), None, None), "argument 4 (eps): expected float, got None"),
        ("fused_add_rmsnorm", (zeros(3, 64), None, zeros(64)), "argument 2 (residual): expected tensor, got None"),
        ("layernorm", (zeros(3, 64), zeros(64), 0), "argument 3 (bias): expected tensor or None, got int"),
        ("fused_inplace_qknorm", (zeros(3, 4, 64), None, zeros(64), zeros(64)), "argument 2 (k): expected tensor"),
    ],
)
def test_an_argument_of_another_type(op: str, arguments: tuple[object, ...], text: str):
    with pytest.raises(TypeError, match=re.escape(text)):
        getattr(norm, op)(*arguments)


def test_head_dim_of_another_type():
    with pytest.raises(TypeError, match=re.escape("argument 6 (head_dim): expected int, got float")):
        norm.fused_inplace_qknorm(**good_call("fused_inplace_qknorm"), head_dim=64.0)


@pytest.mark.parametrize("op", HEAD_OPS)
@pytest.mark.parametrize(
    ("q", "head_dim", "text"),
    [
        (
            zeros(3, 256),
            96,
            "Size mismatch for dimension 1: expected a multiple of 96 but got 256",
        ),
        (
            zeros(3, 256),
            0,
            "{op}: pass head_dim, because q has two dimensions: expected [tokens, heads, head_dim], or [tokens, "
            "heads * head_dim] and head_dim, got Tensor<3, 256>[strides=<256, 1>, dtype=float32, device={device}]",
        ),
        (zeros(3, 4, 64), -64, "{op}: head_dim must not be negative, got -64"),
    ],
    ids=["does not divide", "missing", "negative"],
)
def test_a_head_dim_that_does_not_fit(op: str, q: torch.Tensor, head_dim: int, text: str, device: torch.device):
    call = {name: on_device(value, device) for name, value in {**good_call(op), "q": q}.items()}
    with pytest.raises(ValueError, match=f"{re.escape(text.format(op=op, device=device))}$"):
        getattr(norm, op)(**call, head_dim=head_dim)


def buffer() -> torch.Tensor:
    return torch.ones(8, 300)


def rejected(op: str, call: Call, memory: torch.Tensor, text: str) -> None:
    before = memory.clone()
    with pytest.raises(ValueError, match=f"^{text}"):
        getattr(norm, op)(**call)
    assert torch.equal(memory, before)


def shared(written: str, other: str) -> str:
    """The text of the row operations, with the place of the call."""
    return rf"rows of {written} share memory with each other or with other rows of {other}, at norm/\w+\.cpp:\d+"


@pytest.mark.parametrize("op", OUT_OPS)
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
def test_rows_of_out_that_share_memory(op: str, rows: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]):
    memory = buffer()
    x, out = rows(memory)
    call = {"input": x, "weight": torch.ones(64), "out": out}
    other = "(input|out)"
    rejected(op, call, memory, f"{shared('out', other)}: out is Tensor<3, 64>.*, {other} is Tensor<3, 64>")


@pytest.mark.parametrize("op", ADD_OPS)
@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(lambda b: (b[:3, :64], b[:3, :64]), id="the same"),
        pytest.param(lambda b: (b[:3, :64], b[:3, 63:127]), id="one element"),
        pytest.param(lambda b: (b[1:4, :64], b[:3, :64]), id="one row up"),
        pytest.param(lambda b: (b[:3, :64], b[0:6:2, 32:96]), id="another stride"),
        pytest.param(lambda b: (b[:1, :64].expand(3, 64), torch.ones(3, 64)), id="input one row thrice"),
        pytest.param(lambda b: (torch.ones(3, 64), b[:1, :64].expand(3, 64)), id="residual one row thrice"),
    ],
)
def test_input_and_residual_that_share_memory(op: str, rows: Callable[[torch.Tensor], Any]):
    memory = buffer()
    x, residual = rows(memory)
    call = {**good_call(op), "input": x, "residual": residual}
    names = "(input|residual)"
    rejected(op, call, memory, f"{shared(names, names)}: {names} is Tensor<3, 64>.*, {names} is Tensor<3, 64>")


@pytest.mark.parametrize("op", HEAD_OPS)
@pytest.mark.parametrize(
    "heads",
    [
        pytest.param(lambda b: (b[:, :256], b[:, :256]), id="the same"),
        pytest.param(lambda b: (b[:, :256], b[:, 192:256]), id="k is q's last head"),
        pytest.param(lambda b: (b[:, :256], b[:, 255:287]), id="one element"),
        pytest.param(lambda b: (b[:1, :256].expand(8, 256), torch.ones(8, 64)), id="one token of q"),
        pytest.param(lambda b: (b.as_strided((8, 4, 32), (300, 16, 1)), torch.ones(8, 64)), id="heads of q"),
    ],
)
def test_q_and_k_that_share_memory(op: str, heads: Callable[[torch.Tensor], Any]):
    memory = buffer()
    q, k = heads(memory)
    call = {"q": q, "k": k, "q_weight": torch.ones(32), "k_weight": torch.ones(32), "head_dim": 32}
    rejected(op, call, memory, f"{shared('q', '(q|k)')}: q is Tensor<8, .*{DOUBT}$")


def test_all_heads_that_share_memory():
    memory = buffer()
    call = {"q": memory[:, :64], "k": memory[:, 32:64], "q_weight": torch.ones(64), "k_weight": torch.ones(32)}
    rejected(ALL_HEADS, call, memory, f"{shared('q', 'k')}: q is Tensor<8, 64>.*{DOUBT}$")


@pytest.mark.parametrize("op", OPS)
def test_a_weight_inside_of_what_is_written(op: str):
    memory = buffer()
    call = {name: value for name, value in good_call(op).items() if name != "out"}
    written = "q" if "qknorm" in op else "input"
    call[written] = memory.flatten()[: call[written].numel()].view(call[written].shape)
    weight = "k_weight" if "qknorm" in op else "weight"
    call[weight] = memory.flatten()[100 : 100 + len(call[weight])]
    rejected(op, call, memory, shared("(input|out|q)", weight))


@pytest.mark.parametrize("op", [op for op in OPS if "qknorm" not in op])
def test_the_weight_as_the_only_row_that_is_written(op: str):
    call = {name: value for name, value in good_call(op).items() if name != "out"}
    memory = torch.randn_like(call["weight"])
    call |= {name: torch.randn(1, len(memory)) for name in ("input", "residual") if name in call}
    call |= {"input": memory.view(1, -1), "weight": memory}
    rejected(op, call, memory, shared("(input|out)", "weight"))


@pytest.mark.parametrize("op", OPS)
def test_what_lies_between_the_rows_of_another(op: str):
    """Not an error: nothing is shared."""
    columns = {name: index for index, name in enumerate(name for name in good_call(op) if name != "head_dim")}
    apart = make(op, 5, 32, torch.float32, "cpu", heads=(1, 1))
    memory = torch.empty(5, len(columns) * 32)
    call = {}
    for name, value in apart.items():
        place = memory[:, columns[name] * 32 : columns[name] * 32 + value.shape[-1]]
        call[name] = (place if name in MUTATES[op] else place[0]).view(value.shape).copy_(value)
    getattr(norm, op)(**call)
    getattr(norm, op)(**apart)
    assert all(torch.equal(call[name], value) for name, value in apart.items())


@pytest.mark.parametrize("op", OUT_OPS)
def test_any_number_of_dimensions(op: str):
    """The tensors of a call are at most as deep as PyTorch makes them; no text speaks of another limit."""
    call = make(op, 2, 64, torch.float32, "cpu")
    expected, deep = torch.empty(2, 64), torch.empty([1] * 64 + [2, 64])
    getattr(norm, op)(**{**call, "out": expected})
    getattr(norm, op)(**{**call, "input": call["input"].view(deep.shape), "out": deep})
    assert torch.equal(deep.view(2, 64), expected)


@pytest.mark.parametrize("op", OPS)
def test_nothing_to_do(op: str, device: torch.device):
    for rows, size in ((0, 64), (3, 0), (0, 0)):
        call = make(op, rows, max(size, 4), torch.float32, device)
        call = {name: value[..., :size].contiguous() for name, value in call.items()}
        getattr(norm, op)(**call)


@pytest.mark.parametrize("op", HEAD_OPS)
def test_no_heads(op: str, device: torch.device):
    """Of k, of q, of both."""
    for heads in ((3, 0), (1, 0), (0, 2), (0, 0)):
        check(op, make(op, 3, 64, torch.float32, device, heads))


def far_longer(tokens: int, device: torch.device) -> Call:
    """q and k are views of one tensor, and rows of q have five times the elements."""
    q, k = torch.randn(tokens, 6 * 24, device=device).split([5 * 24, 24], -1)
    weights = {f"{name}_weight": torch.randn(size, device=device) for name, size in (("q", 5 * 24), ("k", 24))}
    return {"q": q, "k": k, **weights}


@pytest.mark.parametrize("tokens", [1023, 1024, 1025])
def test_many_rows_of_q_that_are_far_longer_than_those_of_k(tokens: int, device: torch.device):
    """From 1024 rows on each has a launch of its own."""
    check(ALL_HEADS, far_longer(tokens, device))


def test_a_refused_k_leaves_q_as_it_was_also_where_each_has_a_launch(device: torch.device):
    call = far_longer(1024, device)
    call["k"] = call["q"][:, :24]
    before = call["q"].clone()
    with pytest.raises(ValueError, match="share memory"):
        norm.fused_inplace_qknorm_across_heads(**call)
    assert torch.equal(call["q"], before)


@pytest.mark.parametrize("eps", [-1.0, -1e-30, float("nan"), float("-inf")])
@pytest.mark.parametrize("op", OPS)
def test_an_eps_below_zero(op: str, eps: float, device: torch.device):
    """Refused: the root could be that of a number next to zero, and the result noise."""
    call = make(op, 3, 64, torch.float32, device)
    before = {name: call[name].clone() for name in MUTATES[op] if name in call}
    with pytest.raises(ValueError, match=re.escape(f"{op}: eps must be at least 0, got {eps:g}")):
        getattr(norm, op)(**call, eps=eps)
    assert all(torch.equal(call[name], value) for name, value in before.items())


def test_a_constant_row_and_a_row_of_zeros_are_what_the_docstrings_say(device: torch.device):
    for size in (7, 1000, 4096, 5000):
        for c in (1.1, -3.3e5, 7.7e10, 9.13e11):
            x = torch.full((1, size), c, device=device)
            norm.layernorm(x, torch.ones(size, device=device))
            assert x.abs().max() <= 2e-13 * abs(c) / 1e-5**0.5
    for eps, is_kept in ((2.0**-126, True), (2.0**-150, False), (0.0, False)):
        x = torch.zeros(1, 64, device=device)
        norm.rmsnorm(x, torch.ones(64, device=device), eps=eps)
        assert not x.any() if is_kept else x.isnan().all()


@pytest.mark.parametrize("op", OPS)
def test_an_eps_of_zero(op: str, device: torch.device):
    check(op, make(op, 3, 64, torch.float32, device) | {"eps": 0.0})


@pytest.mark.parametrize("op", OPS)
def test_an_address_between_elements(op: str, device: torch.device):
    """Refused: a CUDA kernel that loads from it would ruin the context, and the CPU's loop has no defined meaning."""
    call = make(op, 3, 64, torch.float32, device)
    name = next(name for name in MUTATES[op] if name in call)
    numel = call[name].numel()
    if device.type == "cpu":
        data = torch.frombuffer(bytearray(4 * numel + 8), dtype=torch.float32, offset=2, count=numel)
    else:
        data = torch.zeros(4 * numel + 16, dtype=torch.uint8, device=device)[2:][: 4 * numel]
    try:
        call[name] = data.view(torch.float32).view(call[name].shape)
    except RuntimeError:
        pytest.skip("this PyTorch does not make such a tensor")
    with pytest.raises(ValueError, match=f"^{name}: its address is not a multiple of its element size, 4 bytes"):
        getattr(norm, op)(**call)
