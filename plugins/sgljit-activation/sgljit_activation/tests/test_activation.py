"""The ops against float64, in every layout, and what wrong arguments get: the same on every device."""

from __future__ import annotations

import functools
import re

import pytest
import torch
from torch.nn.functional import gelu, silu

from sgljit_activation import reference
from sgljit_activation.plugin import FAMILY
from sgljit_core import ops
from sgljit_core.errors import InferenceOnlyError, TensorMatchError

zeros = torch.zeros
OPS = [op for op in FAMILY.declared() if "quant" not in op]  # those that quantise have tests of their own
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
each_dtype = pytest.mark.parametrize(
    "dtype", [x if x is torch.bfloat16 else pytest.param(x, marks=pytest.mark.slow) for x in DTYPES]
)
ROUNDED_ONCE = {torch.float32: 0, torch.float16: 2**-11, torch.bfloat16: 2**-8}
family = ops["activation"]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device  # "cuda" with its index


@pytest.fixture(params=OPS)
def op(request: pytest.FixtureRequest) -> str:
    return request.param


def exact(op: str, x: torch.Tensor, up: torch.Tensor | None = None, **options: object) -> torch.Tensor:
    shape = x.shape if up is not None else (*x.shape[:-1], x.shape[-1] // 2)
    return getattr(reference, op)(x, torch.empty(shape, dtype=torch.float64, device=x.device), up, **options)


def check(op: str, out: torch.Tensor, x: torch.Tensor, up: torch.Tensor | None = None, **options: object) -> None:
    """As exact as float32 arithmetic and one rounding allow: a small result depends on the last digit of the gate."""
    expected = exact(op, x, up, **options)
    assert out.shape == expected.shape
    smallest = 2**-25 if out.dtype is torch.float16 else 1e-35  # exp overflows where a result becomes smaller
    allowed = (2**-14 + 1.001 * ROUNDED_ONCE[out.dtype]) * expected.abs() + smallest
    assert ((out.double() - expected).abs() <= allowed).all()


@pytest.mark.parametrize(
    "dtype", [x if x is torch.bfloat16 else pytest.param(x, marks=pytest.mark.slow) for x in DTYPES]
)
def test_it_agrees_with_float64(op, dtype, device):
    torch.manual_seed(0)
    declared = FAMILY.declared()[op].samples(device)
    samples = [one for one in declared if one["input"].dtype == dtype and not one.get("round_first")]
    assert samples
    for sample in samples:
        x, up, out = sample["input"], sample.get("up"), sample["out"]
        before = x.clone()
        if out is not None:
            out.fill_(float("nan"))
        result = getattr(family, op)(**sample)
        assert result is out or (out is None and result.dtype == x.dtype and result.device == device)
        check(op, result, x, up, **{name: sample[name] for name in sample.keys() - {"input", "out", "up"}})
        assert torch.equal(x, before)


def gates_and_values(dtype, device):
    """All values of a gate. The product of two such numbers is exact in float32: any few values of up will do."""
    gate = torch.arange(1 << 16, dtype=torch.int32, device=device).to(torch.int16).view(dtype).reshape(64, -1)
    torch.manual_seed(0)
    outliers = torch.randn(gate.shape, device=device) * torch.randn(gate.shape, device=device).mul(3).exp()
    return [(gate, torch.ones_like(gate)), (gate, outliers.to(dtype))]


each_rounded_dtype = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


@each_rounded_dtype
@pytest.mark.parametrize(("alpha", "limit"), [(1.702, 7.0), (1.1, 3.3), (1.702, float("inf"))])
def test_rounded_first_gpt_oss_has_the_bits_of_transformers_for_all_values_of_a_gate(alpha, limit, dtype, device):
    for gate, up in gates_and_values(dtype, device):
        limited, values = gate.clamp(max=limit), up.clamp(-limit, limit)
        own = ((values + 1) * (limited * torch.sigmoid(limited * alpha))).nan_to_num(7)
        in_turn = torch.stack([gate, up], -1).flatten(-2)
        options = {"alpha": alpha, "limit": limit}
        for call in ({"input": gate, "up": up}, {"input": in_turn, "is_interleaved": True}):
            ours = family.clamped_swiglu(**call, **options, round_first=True).nan_to_num(7)
            assert torch.equal(ours.view(torch.int16), own.view(torch.int16))
            assert not torch.equal(family.clamped_swiglu(**call, **options).nan_to_num(7), own)


@each_rounded_dtype
@pytest.mark.parametrize(("op", "other"), [("gelu_and_mul", 0.02), ("gelu_tanh_and_mul", 0.01)])
def test_rounded_first_gelu_has_the_bits_of_two_ops_and_of_pytorch_but_for_small_results(op, other, dtype, device):
    """PyTorch adds 1 to a number next to -1."""
    activation = functools.partial(gelu, approximate="tanh" if "tanh" in op else "none")
    for gate, up in gates_and_values(dtype, device):
        ours = getattr(family, op)(gate, None, up, round_first=True).nan_to_num(7)
        apart = getattr(family, op)(gate, None, torch.ones_like(up)) * up
        assert torch.equal(ours, apart.nan_to_num(7))
        differs = ours != (activation(gate) * up).nan_to_num(7)
        assert differs.float().mean() <= other
        assert differs[(gate > -1.9) & (gate.abs() > 1e-37) & (gate < 1e38)].float().mean() <= 0.002
        assert torch.equal(ours, getattr(family, op)(gate, None, up).nan_to_num(7)) == bool((up == 1).all())


@each_rounded_dtype
def test_rounded_first_it_has_the_bits_of_pytorch_for_all_values_of_a_gate(dtype, device):
    for gate, up in gates_and_values(dtype, device):
        own = (silu(gate) * up).nan_to_num(7)
        ours = family.silu_and_mul(gate, None, up, round_first=True).nan_to_num(7)
        assert torch.equal(ours.view(torch.int16), own.view(torch.int16))
        once = family.silu_and_mul(gate, None, up).nan_to_num(7)
        assert torch.equal(once, own) == bool((up == 1).all()) or device.type == "cuda"  # its exponential is another


def test_the_reference_is_what_pytorch_computes():
    x = torch.linspace(-9, 9, 100, dtype=torch.float64)
    for op, activation in (
        ("silu_and_mul", silu),
        ("gelu_and_mul", gelu),
        ("gelu_tanh_and_mul", functools.partial(gelu, approximate="tanh")),
    ):
        torch.testing.assert_close(getattr(reference, op)(x, None, x), activation(x) * x, rtol=0, atol=1e-12)


def test_the_reference_is_what_gpt_oss_computes():
    """With the numbers of its config; in transformers' formula, whose gates and values are in turn."""
    gate_up = torch.linspace(-9, 9, 400, dtype=torch.float64).view(20, 2, 10).transpose(1, 2).reshape(2, 200)
    gate, up = gate_up[:, ::2].clamp(max=7), gate_up[:, 1::2].clamp(-7, 7)
    expected = (up + 1) * gate / (1 + torch.exp(-1.702 * gate))
    actual = reference.clamped_swiglu(gate_up, is_interleaved=True)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    halves = torch.cat([gate_up[:, ::2], gate_up[:, 1::2]], 1)
    torch.testing.assert_close(reference.clamped_swiglu(halves), expected, rtol=0, atol=1e-12)


@each_dtype
def test_gates_and_values_in_turn_begin_anywhere(dtype, device):
    wide, target = torch.randn(5, 100, device=device).mul(5).to(dtype), torch.empty(5, 64, device=device, dtype=dtype)
    for first, size in ((0, 40), (1, 40), (3, 33), (2, 1)):
        for x in (wide[:, first : first + 2 * size], wide[1:, first : first + 2 * size].view(2, 2, -1)):
            out = target[: x.shape[0], first : first + size] if x.ndim == 2 else None
            target.fill_(float("nan"))
            options = {"alpha": 1.3, "limit": 4.5, "is_interleaved": True}
            result = family.clamped_swiglu(x, out, **options)
            check("clamped_swiglu", result, x, **options)
            assert target.isnan().sum() == target.numel() - (0 if out is None else out.numel())


def test_without_a_limit_and_at_it(device):
    gates = torch.tensor([-8.0, -7.0, 6.5, 7.0, 7.5, 100.0], device=device)
    for limit in (7.0, 7, float("inf"), 1e-3):
        out = family.clamped_swiglu(gates, None, -gates, limit=limit)
        check("clamped_swiglu", out, gates, -gates, limit=limit)
    assert out.abs().max() < 1e-3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"limit": 0.0}, "^clamped_swiglu: limit must be positive in float32, got 0"),
        ({"limit": 1e-60}, "^clamped_swiglu: limit must be positive in float32, got 1e-60"),
        ({"limit": float("nan")}, "^clamped_swiglu: limit must be positive in float32, got nan"),
        ({"alpha": float("nan")}, "^clamped_swiglu: alpha must be a finite number of float32, got nan"),
        ({"alpha": float("inf")}, "^clamped_swiglu: alpha must be a finite number of float32, got inf"),
        ({"up": zeros(2, 8), "is_interleaved": True}, "^clamped_swiglu: is_interleaved is for .*: leave up out"),
    ],
)
def test_options_that_do_not_fit(options, text, device):
    x = zeros(2, 8, device=device)
    given = {name: one.to(device) if isinstance(one, torch.Tensor) else one for name, one in options.items()}
    with pytest.raises(ValueError, match=text):
        family.clamped_swiglu(x, **given)


def test_gates_and_values_in_turn_that_do_not_fit(device):
    x = zeros(2, 8, device=device)
    for arguments, text in (
        ((x[:, :7],), "input, Tensor<.*expected whole groups of 2 but got 7"),
        ((x, zeros(2, 8, device=device)), "out, Tensor<.*Size mismatch for a row: expected 4 but got 8"),
        ((x, zeros(3, 4, device=device)), "out, Tensor<.*expected 2 but got 3"),
    ):
        with pytest.raises(TensorMatchError, match=rf"(?s)^clamped_swiglu\(\): Tensor match failed for {text}"):
            family.clamped_swiglu(*arguments, is_interleaved=True)
    memory = torch.randn(4, 8, device=device)
    with pytest.raises(ValueError, match="rows of out share memory with each other or with other rows of input"):
        family.clamped_swiglu(memory, memory[:, :4], is_interleaved=True)


@each_dtype
@pytest.mark.parametrize(("first", "size"), [(0, 40), (0, 33), (1, 40), (3, 33)])
def test_rows_may_be_apart_and_begin_anywhere(op, dtype, first, size, device):
    wide, target = torch.randn(5, 100, device=device).to(dtype), torch.full((5, 64), float("nan"), device=device)
    x, out = wide[:, first : first + 2 * size], target[:, first : first + size]
    for up in (None, x[:, size:]):
        target.fill_(float("nan"))
        given = x if up is None else x[:, :size]
        assert getattr(family, op)(given, out, up) is out
        check(op, out, given, up)
        assert target.isnan().sum() == target.numel() - out.numel(), "something else is written"


@each_dtype
def test_many_rows_and_long_rows_are_shared_among_threads(op, dtype, device):
    for shape in ((2, 1 << 20), (1 << 12, 514), (3, 5, 7, 2050)):
        x = (torch.randn(shape, device=device) * 3).to(dtype)
        check(op, getattr(family, op)(x), x)


@pytest.mark.gpu
@pytest.mark.slow
def test_more_elements_than_32_bits_count(op):
    x = torch.empty(3, 2**31, dtype=torch.bfloat16, device="cuda").uniform_(-4, 4)
    out = getattr(family, op)(x)
    for row in range(3):
        check(op, out[row, -1000:], x[row, 2**30 - 1000 : 2**30], x[row, -1000:])


def test_the_gate_or_the_values_may_be_overwritten(op, device):
    for target in (0, 1):
        x = torch.randn(6, 130, device=device)
        halves, before = x.chunk(2, dim=1), x.clone()
        getattr(family, op)(x, halves[target])
        check(op, halves[target], before)
        assert torch.equal(halves[1 - target], before.chunk(2, dim=1)[1 - target])


@each_dtype
def test_nan_infinity_and_huge_numbers(op, dtype, device):
    nan, inf, large = float("nan"), float("inf"), torch.finfo(dtype).max
    gates = torch.tensor([nan, inf, -inf, large, -large, 80.0, -80.0, 0.0, -0.0, 1.0], device=device).to(dtype)
    for value in (1.0, -2.0, 0.0, inf, nan):
        up = torch.full_like(gates, value)
        actual, expected = getattr(family, op)(gates, None, up), exact(op, gates, up).to(dtype)
        torch.testing.assert_close(actual, expected, equal_nan=True, rtol=1e-3, atol=1e-30)


def test_nothing_to_do(op, device):
    for shape in ((0, 8), (3, 0), (2, 0, 8)):
        out = getattr(family, op)(torch.ones(shape, device=device))
        assert out.shape == (*shape[:-1], shape[-1] // 2)


BAD = {
    "dtype": (lambda d: (zeros(2, 8, device=d).int(),), "input", r"expected one of \[float32, float16, bfloat16\]"),
    "odd": (lambda d: (zeros(2, 7, device=d),), "input", "2 parts of equal size, got 7 elements"),
    "no dimension": (lambda d: (zeros((), device=d),), "input", "expected at least 1 but got 0"),
    "columns": (lambda d: (zeros(8, 2, device=d).T,), "input", "stride of 1, but got 2"),
    "two strides": (lambda d: (zeros(3, 4, 8, device=d)[:, :2],), "input", "one stride, 8, but got 32"),
    "rows of out": (lambda d: (zeros(2, 8, device=d), zeros(1, 4, device=d)), "out", "expected 2 but got 1"),
    "shape of out": (lambda d: (zeros(2, 3, 8, device=d), zeros(3, 2, 4, device=d)), "out", "dimension 0: expected 2"),
    "shape of up": (lambda d: (zeros(2, 8, device=d), None, zeros(1, 2, 8, device=d)), "up", "expected 2 but got 3"),
    "size of out": (lambda d: (zeros(2, 8, device=d), zeros(2, 8, device=d)), "out", "expected 4 but got 8"),
    "dtype of out": (lambda d: (zeros(2, 8, device=d), zeros(2, 4, device=d).double()), "out", "got float64"),
    "FP8 as out": (
        lambda d: (zeros(2, 8, device=d), zeros(2, 4, device=d).to(torch.float8_e4m3fn)),
        "out",
        r"expected one of \[float32, float16, bfloat16\] but got float8_e4m3fn",
    ),
    "size of up": (lambda d: (zeros(2, 8, device=d), None, zeros(2, 4, device=d)), "up", "expected 8 but got 4"),
    "dtype of up": (lambda d: (zeros(2, 8, device=d), None, zeros(2, 8, device=d).half()), "up", "got float16"),
}


@pytest.mark.parametrize("case", BAD)
def test_tensors_that_do_not_fit_are_refused_with_the_cause(op, case, device):
    arguments, name, text = BAD[case]
    with pytest.raises(
        TensorMatchError, match=rf"(?s)^\w+\(\): Tensor match failed for {name}, Tensor<.*activation\.cpp.*{text}"
    ):
        getattr(family, op)(*arguments(device))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((3,), "argument 1 (input): expected tensor, got int"),
        ((None, zeros(2, 4)), "argument 1 (input): expected tensor, got None"),
        ((zeros(2, 8), 3), "argument 2 (out): expected tensor or None, got int"),
        ((zeros(2, 8), None, 3), "argument 3 (up): expected tensor or None, got int"),
    ],
)
def test_an_argument_of_another_type(op, arguments, text):
    with pytest.raises(TypeError, match=re.escape(text)):
        getattr(family, op)(*arguments)


class Array:
    """Memory, as other libraries offer theirs."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def test_an_array_of_another_library_needs_an_out(op):
    x = torch.randn(2, 8)
    with pytest.raises(TypeError, match=r"^out is None, and a new one is made only where input is a torch\.Tensor"):
        getattr(family, op)(Array(x))
    out = zeros(2, 4)
    assert getattr(family, op)(Array(x), out) is out
    check(op, out, x)


@pytest.mark.gpu
def test_devices_mixed(op):
    x = zeros(2, 8)
    for arguments in ((x, zeros(2, 4, device="cuda")), (x.cuda(), zeros(2, 4)), (x.cuda(), None, x)):
        with pytest.raises(TensorMatchError, match="Device mismatch: expected c"):
            getattr(family, op)(*arguments)


def test_an_out_that_shares_memory_with_other_rows_is_refused(op, device):
    memory = torch.randn(8, 16, device=device)
    before = memory.clone()
    x = memory[:4, :8]
    for out in (x[:, 1:5], memory[1:5, :4], torch.empty(4, device=device).expand(4, 4)):
        with pytest.raises(ValueError, match="rows of out share memory with each other or with other rows of"):
            getattr(family, op)(x, out)
    with pytest.raises(ValueError, match="rows of out share memory with each other or with other rows of up"):
        getattr(family, op)(memory[:4, 8:], memory[1:5, :8], memory[:4, :8])
    assert torch.equal(memory, before)


def test_an_address_between_elements_is_refused(op):
    data = torch.frombuffer(bytearray(72), dtype=torch.uint8)[2:66]
    try:
        x = data.view(torch.float32).view(2, 8)
    except RuntimeError:
        x = torch.frombuffer(bytearray(72), dtype=torch.float32, offset=2, count=16).view(2, 8)
    with pytest.raises(ValueError, match="address is not a multiple of its element size, 4 bytes"):
        getattr(family, op)(x)


def test_a_gradient_is_refused(op):
    with pytest.raises(InferenceOnlyError, match=f"activation.{op}"):
        getattr(family, op)(torch.ones(2, 8, requires_grad=True))
