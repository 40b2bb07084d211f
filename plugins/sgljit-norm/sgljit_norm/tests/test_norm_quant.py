"""The norms with FP8 out, on both devices: within half a step of float64, rounded first or not."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import pytest
import torch

from sgljit_core import ops
from sgljit_core.errors import TensorMatchError
from sgljit_norm import reference, samples
from sgljit_quant.tests.powers import check_powers, in_groups, layouts

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ROUNDED = {torch.float32: 2**-22, torch.float16: 2**-10, torch.bfloat16: 2**-7}
FP8 = torch.float8_e4m3fn
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-126, torch.finfo(torch.float32).max
OPS = ["rmsnorm_quant", "fused_add_rmsnorm_quant"]
each_op = pytest.mark.parametrize("op", OPS)
one_op = pytest.mark.parametrize("op", [OPS[0], pytest.param(OPS[1], marks=pytest.mark.slow)])
each_dtype = pytest.mark.parametrize(
    "dtype", [x if x is torch.bfloat16 else pytest.param(x, marks=pytest.mark.slow) for x in DTYPES], ids=str
)  # each compiles programs of its own
norm = ops["norm"]

Call = dict[str, Any]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device  # "cuda" with its index


def make(op: str, x: torch.Tensor, weight: torch.Tensor | None = None) -> Call:
    """A call without its outputs."""
    call = {"input": x, "weight": torch.randn(x.shape[1], device=x.device).to(x.dtype) if weight is None else weight}
    return call | ({"residual": torch.randn_like(x)} if "add" in op else {})


def rounded_norm(call: Call) -> torch.Tensor:
    """The norm by kernels of its own, each of which rounds."""
    total = call["input"] + call["residual"] if "residual" in call else call["input"].clone()
    norm.rmsnorm(total, call["weight"])
    return total


def check(op: str, call: Call, s: torch.Tensor, is_static: bool = False) -> None:
    """Both forms, into an output between others: within half a step of e4m3 of the exact quotient by the scale.

    The arithmetic before it is in float32. If it is rounded first, a value beside a tie may go to the other side.
    """
    x = call["input"]
    rows, size = x.shape
    wide = torch.full((rows, size + 32), 0x55, dtype=torch.uint8, device=x.device)
    q = wide[:, 16 : 16 + size].view(FP8)
    total = x.double() + (call["residual"].double() if "residual" in call else 0)
    normed = torch.empty_like(total)
    reference.rmsnorm(total, call["weight"], normed)
    for round_first, slack in ((False, 2**-18), (True, ROUNDED[x.dtype] + 2**-18)):
        run = {name: value.clone() for name, value in call.items()}
        getattr(norm, op)(**run, output_q=q, output_s=s, is_static=is_static, round_first=round_first)
        y, scale = in_groups(normed, s.double())
        if not is_static:
            wanted = (y.abs().amax(-1, keepdim=True) / 448).clamp(min=SMALLEST_SCALE)
            assert ((scale - wanted).abs() <= wanted * slack).all()
        exact = y.clamp(-448 * scale, 448 * scale)
        error = (in_groups(q.double(), s)[0] * scale - exact).abs()
        assert (error <= (exact.abs() / 16 + scale * 2**-10) * 1.001 + y.abs() * slack).all()
        assert torch.equal(run["input"], x)
        if "residual" in run:
            assert torch.equal(run["residual"], total.to(x.dtype))
    assert (wide[:, :16] == 0x55).all()
    assert (wide[:, 16 + size :] == 0x55).all()


@pytest.mark.slow
@one_op
@each_dtype
def test_any_size_and_scale(op: str, dtype: torch.dtype, device: torch.device):
    torch.manual_seed(0)
    for rows, size in itertools.product((1, 3, 129), (1, 65, 128, 384, 4096, 7168)):
        call = make(op, torch.randn(rows, size, device=device).to(dtype))
        check(op, call, torch.empty(rows, 1, device=device))
        check(op, call, torch.full((1,), 0.01, device=device), is_static=True)
        if size % 128 == 0:
            check(op, call, torch.empty(rows, size // 128, device=device))
            check(op, call, torch.empty(size // 128, rows + 3, device=device).t()[:rows])


@pytest.mark.slow
@one_op
def test_rows_may_be_apart_and_the_weight_of_another_dtype(op: str, device: torch.device):
    wide = torch.randn(5, 1000, device=device).bfloat16()
    for first, size in ((8, 256), (0, 512), (3, 100)):
        call = make(op, wide[:, first : first + size], torch.randn(size, device=device))
        check(op, call, torch.empty(5, 1, device=device))
        if size % 128 == 0:
            check(op, call, torch.empty(5, size // 128, device=device))


@pytest.mark.gpu
@each_op
def test_groups_on_cuda_need_whole_loads(op: str):
    wide = torch.ones(3, 1 << 18, device="cuda")
    for x in (wide[:, 1:257], wide):
        call = make(op, x)
        q, s = torch.empty(x.shape, dtype=FP8, device="cuda"), torch.empty(3, x.shape[1] // 128, device="cuda")
        with pytest.raises(TensorMatchError, match="groups of 128 elements need rows at multiples of 4 elements"):
            getattr(norm, op)(**call, output_q=q, output_s=s)


@each_op
@each_dtype
def test_rounded_first_it_is_a_norm_and_a_quantisation(op: str, dtype: torch.dtype):
    """And an addition before. The same bits on the CPU; on CUDA a sum may differ in its last bit."""
    torch.manual_seed(0)
    for size in (128, 1000, 4096):
        call = make(op, torch.randn(33, size).to(dtype))
        s, q = torch.empty(33, 1), torch.empty(33, size, dtype=FP8)
        run = {name: value.clone() for name, value in call.items()}
        getattr(norm, op)(**run, output_q=q, output_s=s, round_first=True)
        y = rounded_norm(call).float()
        scale = y.abs().amax(-1, keepdim=True) / 448
        assert torch.equal(s, scale)
        assert torch.equal(q.float(), (y * scale.reciprocal()).clamp(-448, 448).to(FP8).float())
        assert "residual" not in run or torch.equal(run["residual"], call["residual"] + call["input"])


def test_rounded_first_the_sum_has_the_dtype_of_its_residual():
    """That of the norm is the input's."""
    torch.manual_seed(0)
    x, residual, weight = torch.randn(3, 33, 256).unbind()
    for of_input, of_residual in itertools.permutations(DTYPES, 2):
        call = {"input": x.to(of_input), "residual": residual.to(of_residual), "weight": weight[0]}
        s, q = torch.empty(33, 1), torch.empty(33, 256, dtype=FP8)
        run = {name: value.clone() for name, value in call.items()}
        norm.fused_add_rmsnorm_quant(**run, output_q=q, output_s=s, round_first=True)
        total = (call["input"].float() + call["residual"].float()).to(of_residual)
        assert torch.equal(run["residual"], total)
        y = total.float()
        norm.rmsnorm(y, weight[0])
        y = y.to(of_input).float()
        assert torch.equal(s, y.abs().amax(-1, keepdim=True) / 448)
        assert torch.equal(q.float(), (y * s.reciprocal()).clamp(-448, 448).to(FP8).float())


def check_each(op: str, call: Call, s: torch.Tensor, dtype: torch.dtype = FP8) -> None:
    """Scales of powers of two. Rounded first, on the CPU: the bits of a norm, and of a quantisation after it.

    On CUDA the sum of a row may differ in its last bit.
    """
    x = call["input"]
    total = x.double() + (call["residual"].double() if "residual" in call else 0)
    exact = torch.empty_like(total)
    reference.rmsnorm(total, call["weight"], exact)

    def run(q: torch.Tensor, s: torch.Tensor) -> None:
        arguments = {name: value.clone() for name, value in call.items()}
        getattr(norm, op)(**arguments, output_q=q, output_s=s, round_first=round_first, scale_ue8m0=True)
        assert "residual" not in call or torch.equal(arguments["residual"], total.to(x.dtype))

    round_first = False
    check_powers(run, exact, s, dtype, slack=2**-18)
    round_first, rounded = True, rounded_norm(call) if x.device.type == "cpu" else None
    check_powers(run, exact, s, dtype, slack=ROUNDED[x.dtype] + 2**-18, rounded=rounded)


@pytest.mark.slow
@one_op
@each_dtype
def test_powers_of_two_in_every_layout(op: str, dtype: torch.dtype, device: torch.device):
    torch.manual_seed(0)
    for rows, groups in ((1, 1), (3, 4), (33, 5), (2, 12), (2, 32)):
        spread = torch.randn(groups * 128, device=device).exp().to(dtype)
        call = make(op, torch.randn(rows, 128 * groups, device=device).to(dtype), spread)
        for s in layouts(rows, groups, device):
            check_each(op, call, s)
        check_each(op, call, torch.empty(rows, 1, device=device))


@pytest.mark.slow
@one_op
def test_powers_of_two_for_int8(op: str, device: torch.device):
    torch.manual_seed(0)
    call = make(op, torch.randn(5, 640, device=device).bfloat16())
    for s in layouts(5, 5, device)[1::2]:
        check_each(op, call, s, torch.int8)


@each_op
def test_powers_of_two_that_do_not_fit(op: str, device: torch.device):
    call = make(op, torch.ones(3, 640, device=device)) | {"output_q": torch.zeros(3, 640, device=device).to(FP8)}
    words = torch.zeros(3, 2, dtype=torch.int32, device=device)
    run = getattr(norm, op)
    with pytest.raises(ValueError, match=f"^{op}: output_s of int32 .* so it needs scale_ue8m0=True"):
        run(**call, output_s=words)
    with pytest.raises(ValueError, match=f"^{op}: scale_ue8m0 is for scales that are computed"):
        run(**call, output_s=torch.ones(1, device=device), is_static=True, scale_ue8m0=True)
    for wrong in (words[:2], words[:, :1], torch.zeros(3, 5, dtype=torch.int32, device=device)):
        with pytest.raises(TensorMatchError, match=r"(?s)output_s, .*expected \[3, 2\], a word for each 512 elements"):
            run(**call, output_s=wrong, scale_ue8m0=True)
    with pytest.raises(ValueError, match="rows of output_s share memory with each other"):
        run(**call, output_s=words[:1].expand(3, 2), scale_ue8m0=True)


@one_op
@each_dtype
def test_samples_against_the_reference(op: str, dtype: torch.dtype, device: torch.device):
    chosen = [sample for sample in getattr(samples, op)(device) if sample["input"].dtype == dtype]
    assert chosen
    for sample in chosen:
        s = sample["output_s"]
        wanted = {**sample, "output_q": sample["output_q"].double()}
        wanted["output_s"] = s.clone() if s.dtype is torch.int32 else s.double()
        if "residual" in sample:
            wanted["residual"] = sample["residual"].clone()
        getattr(norm, op)(**sample)
        getattr(reference, op)(**wanted)
        rounding = 0 if sample.get("scale_ue8m0") else 2**-7
        torch.testing.assert_close(s.double(), wanted["output_s"].double(), rtol=rounding, atol=0)
        torch.testing.assert_close(sample["output_q"].double(), wanted["output_q"], rtol=2**-4 * 1.2, atol=2**-9)


@one_op
def test_no_row_and_no_column(op: str, device: torch.device):
    """A row without elements has the smallest scale."""
    for rows, size in ((0, 256), (3, 0)):
        call = make(op, torch.ones(rows, size, device=device, dtype=torch.bfloat16))
        for s in (torch.ones(rows, 1, device=device), torch.ones(rows, size // 128, device=device)):
            getattr(norm, op)(**call, output_q=torch.empty(rows, size, dtype=FP8, device=device), output_s=s)
            assert (s == 2.0**-126).all()


@one_op
@each_dtype
def test_zeros_nan_and_infinity_stay_in_their_row(op: str, dtype: torch.dtype, device: torch.device):
    x = torch.ones(4, 256, device=device, dtype=dtype)
    x[0] = 0
    x[1, 5], x[2, 5] = math.nan, math.inf
    call = make(op, x, torch.ones(256, device=device, dtype=dtype))
    if "residual" in call:
        call["residual"].zero_()
    for groups, round_first in itertools.product((1, 2), (False, True)):
        q, s = torch.empty(4, 256, dtype=FP8, device=device), torch.empty(4, groups, device=device)
        run = {name: value.clone() for name, value in call.items()}
        getattr(norm, op)(**run, output_q=q, output_s=s, round_first=round_first)
        assert (s[0] == SMALLEST_SCALE).all()
        assert (q[0].float() == 0).all()
        assert q[1].float().isnan().all()  # as of rmsnorm
        assert (s[1] == SMALLEST_SCALE).all()
        assert q[2].float().isnan().tolist() == [i == 5 for i in range(256)]  # infinity times zero
        assert (q[2].float().nan_to_num(nan=0) == 0).all()
        assert (q[3].float() == 448).all()


def test_a_product_beyond_float32_is_infinite_and_saturates(device: torch.device):
    x, weight = torch.ones(1, 256, device=device), torch.full((256,), 1.0, device=device)
    x[0, 0], weight[0] = 1e4, 3e38
    q, s = torch.empty(1, 256, dtype=FP8, device=device), torch.empty(1, 2, device=device)
    norm.rmsnorm_quant(x, weight, q, s)
    assert s[0, 0] == LARGEST_SCALE
    assert q[0, :2].float().tolist() == [448, 0]
    assert (q[0, 128:].float() == 448).all()


@one_op
@pytest.mark.parametrize("dtype", [FP8, torch.int8], ids=str)
@pytest.mark.parametrize("given", [0.0, math.inf, math.nan])
def test_a_given_scale_that_is_not_positive(op: str, dtype: torch.dtype, given: float, device: torch.device):
    """A quotient of zero by zero is NaN, which int8 has as 0."""
    quotients = {0.0: [math.inf, -math.inf, math.nan], math.inf: [0, 0, 0], math.nan: [math.nan] * 3}[given]
    least, most = (-448, 448) if dtype is FP8 else (-128, 127)
    expected = [x if math.isnan(x) else min(max(x, least), most) for x in quotients]
    expected = [0 if math.isnan(x) and dtype is torch.int8 else x for x in expected]
    call = make(op, torch.tensor([[1.0, -2.0, 0.0]], device=device), torch.ones(3, device=device))
    if "residual" in call:
        call["residual"].zero_()
    q, scale = torch.full((1, 3), 77.0, device=device).to(dtype), torch.tensor([given], device=device)
    getattr(norm, op)(**call, output_q=q, output_s=scale, is_static=True)
    assert q[0].float().tolist() == pytest.approx(expected, nan_ok=True)
    assert torch.equal(scale, torch.tensor([given], device=device)) or math.isnan(given)


BAD = {
    "dtype of input": ({"input": torch.zeros(3, 256).int()}, "input", "float16, bfloat16] but got int32"),
    "dimensions of input": ({"input": torch.zeros(1, 3, 256)}, "input", "expected 2 but got 3"),
    "dtype of weight": ({"weight": torch.zeros(256).to(FP8)}, "weight", "bfloat16] but got float8_e4m3fn"),
    "size of weight": ({"weight": torch.zeros(255)}, "weight", "expected 256 but got 255"),
    "dtype of output_q": (
        {"output_q": torch.zeros(3, 256)},
        "output_q",
        "expected one of [float8_e4m3fn, int8] but got float32",
    ),
    "rows of output_q": ({"output_q": torch.zeros(2, 256).to(FP8)}, "output_q", "expected 3 but got 2"),
    "size of output_q": ({"output_q": torch.zeros(3, 255).to(FP8)}, "output_q", "expected 256 but got 255"),
    "dtype of output_s": ({"output_s": torch.zeros(3, 1).half()}, "output_s", "expected float32 but got float16"),
    "rows of output_s": ({"output_s": torch.zeros(4, 1)}, "output_s", "expected 3 but got 4"),
    "groups": ({"output_s": torch.zeros(3, 3)}, "output_s", "expected 2 but got 3"),
    "a given scale for each row": ({"output_s": torch.zeros(3), "is_static": True}, "output_s", "expected 1 but got 3"),
    "part of a group": (
        {
            "input": torch.zeros(3, 200),
            "weight": torch.zeros(200),
            "output_q": torch.zeros(3, 200).to(FP8),
            "output_s": torch.zeros(3, 2),
        },
        "input",
        "expected whole groups of 128 but got 200",
    ),
}


def good_call(op: str, device: torch.device) -> Call:
    return make(op, torch.ones(3, 256, device=device)) | {
        "output_q": torch.zeros(3, 256, device=device).to(FP8),
        "output_s": torch.zeros(3, 1, device=device),
    }


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_match_is_refused_with_the_cause(case: str, device: torch.device):
    change, name, text = BAD[case]
    call = good_call(OPS[0], device)
    call |= {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in change.items()}
    with pytest.raises(
        TensorMatchError, match=rf"(?s)^\w+\(\): Tensor match failed for {name}, Tensor<.*{re.escape(text)}"
    ):
        norm.rmsnorm_quant(**call)


def test_a_residual_that_does_not_match(device: torch.device):
    for residual in (torch.zeros(3, 256).int(), torch.zeros(2, 256), torch.zeros(3, 255)):
        with pytest.raises(TensorMatchError, match=r"^\w+\(\): Tensor match failed for residual, "):
            norm.fused_add_rmsnorm_quant(**good_call(OPS[1], device) | {"residual": residual.to(device)})


@each_op
def test_eps_out_of_range_and_arguments_that_share_memory(op: str, device: torch.device):
    call = good_call(op, device)
    for eps in (-1.0, math.nan):
        with pytest.raises(ValueError, match=f"{op}: eps must be at least 0, got "):
            getattr(norm, op)(**call, eps=eps)
    changes = [
        {"output_s": call["input"][:, :1]},
        {"output_q": call["output_q"][:1].expand(3, 256)},
        {"output_q": call["input"].view(FP8)[:, :256]},
    ]
    if "add" in op:
        changes.append({"residual": call["input"][:1].expand(3, 256)})
    for change in changes:
        with pytest.raises(ValueError, match="share memory with each other or with other rows of"):
            getattr(norm, op)(**call | change)
