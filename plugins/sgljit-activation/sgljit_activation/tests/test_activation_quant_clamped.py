"""gpt-oss's activation with FP8 or int8 out, on both devices: near to float64, and the bits of two ops if rounded."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch

from sgljit_activation import reference, samples
from sgljit_core import ops
from sgljit_core.errors import TensorMatchError
from sgljit_quant.tests.powers import check_powers, in_groups, layouts

from .test_activation_quant import FP8, LARGEST_SCALE, SMALLEST_SCALE, chain, check_accurate, each_dtype

family = ops["activation"]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device  # "cuda" with its index


def made(rows: int, size: int, dtype: torch.dtype, device: torch.device) -> list[dict[str, Any]]:
    """Gates beside their values, in turn with them, and apart from them, many beyond a limit."""
    both = (torch.randn(rows, 2 * size, device=device) * 4).to(dtype)
    gate, up = both.chunk(2, dim=1)
    in_turn = [{"input": both, "is_interleaved": True}] if dtype != torch.float32 else []
    return [{"input": both}, {"input": gate, "up": up, "alpha": 1.3, "limit": 2.3}, *in_turn]


def exact(call: dict[str, Any]) -> torch.Tensor:
    """In float64."""
    x = call["input"]
    size = x.shape[1] if "up" in call else x.shape[1] // 2
    return reference.clamped_swiglu(**call, out=torch.empty(x.shape[0], size, dtype=torch.float64, device=x.device))


def check(call: dict[str, Any], s: torch.Tensor, is_static: bool = False) -> None:
    """Both forms, into an output between others."""
    before, given, wanted = {name: call[name].clone() for name in call.keys() & {"input", "up"}}, s.clone(), exact(call)
    rows, size = wanted.shape
    wide = torch.full((rows, size + 32), 0x55, dtype=torch.uint8, device=s.device)
    q = wide[:, 16 : 16 + size].view(FP8)
    family.clamped_swiglu_quant(**call, output_q=q, output_s=s, is_static=is_static)
    check_accurate(wanted, q, s, is_static)
    for flag, round_first in (("round_first", False), ("round_each", True)):
        wide[:, 16 : 16 + size] = 0x2A
        s.copy_(given)
        family.clamped_swiglu_quant(**call, output_q=q, output_s=s, is_static=is_static, **{flag: True})
        expected_q, expected_s = chain(family.clamped_swiglu(**call, round_first=round_first), given, is_static)
        assert torch.equal(q.view(torch.uint8), expected_q.to(torch.uint8))
        assert torch.equal(s, expected_s)
    assert all(torch.equal(call[name], x) for name, x in before.items())
    assert (wide[:, :16] == 0x55).all()
    assert (wide[:, 16 + size :] == 0x55).all()


@each_dtype
def test_any_size_and_scale(dtype: torch.dtype, device: torch.device):
    torch.manual_seed(0)
    for rows, size in ((1, 1), (3, 65), (129, 128), (5, 2880), (2, 6144)):
        for call in made(rows, size, dtype, device):
            check(call, torch.empty(rows, 1, device=device))
            check(call, torch.full((1,), 0.02, device=device), is_static=True)
            if size % 128 == 0:
                check(call, torch.empty(size // 128, rows + 3, device=device).t()[:rows])


def test_rows_may_be_apart_and_begin_anywhere(device: torch.device):
    wide = torch.randn(5, 1000, device=device).bfloat16()
    for first, size in ((0, 256), (1, 256), (3, 100)):
        x = wide[:, first : first + 2 * size]
        for call in ({"input": x}, {"input": x[:, :size], "up": x[:, size:]}):
            check(call, torch.empty(5, size // 128 if size % 128 == 0 else 1, device=device))


@pytest.mark.slow
@each_dtype
def test_int8(dtype: torch.dtype, device: torch.device):
    torch.manual_seed(0)
    for call in made(33, 384, dtype, device):
        for s, is_static in ((torch.empty(33, 1), False), (torch.empty(33, 3), False), (torch.full((1,), 0.1), True)):
            s = s.to(device)  # noqa: PLW2901
            q = torch.full((33, 384), 0x55, dtype=torch.int8, device=device)
            family.clamped_swiglu_quant(**call, output_q=q, output_s=s, is_static=is_static, round_first=True)
            rounded, scale = in_groups(family.clamped_swiglu(**call).float(), s)
            expected = (rounded * scale.reciprocal()).round().clamp(-128, 127).to(torch.int8)
            assert torch.equal(q, expected.reshape(q.shape))
            family.clamped_swiglu_quant(**call, output_q=q, output_s=s, is_static=is_static)
            y, scale = in_groups(exact(call), s.double())
            error = (in_groups(q.double(), s)[0] * scale - y.clamp(-128 * scale, 127 * scale)).abs()
            assert (error <= scale / 2 * 1.0001 + y.abs() * 2**-14).all()


@each_dtype
def test_powers_of_two_in_every_layout(dtype: torch.dtype, device: torch.device):
    """Rounded first: the bits of ``clamped_swiglu``, and of a quantisation after it."""
    torch.manual_seed(0)
    for rows, groups in ((1, 1), (3, 4), (33, 5)):
        for call in made(rows, 128 * groups, dtype, device):

            def run(q: torch.Tensor, s: torch.Tensor, call: dict[str, Any] = call, **options: bool) -> None:
                family.clamped_swiglu_quant(**call, output_q=q, output_s=s, scale_ue8m0=True, **options)

            y = family.clamped_swiglu(**call)
            for s in (*layouts(rows, groups, device), torch.empty(rows, 1, device=device)):
                check_powers(functools.partial(run, round_first=True), y.double(), s, FP8, slack=2**-18, rounded=y)
                check_powers(run, exact(call), s, FP8, slack=2**-14)


@each_dtype
def test_samples_against_the_reference(dtype: torch.dtype, device: torch.device):
    chosen = [sample for sample in samples.clamped_swiglu_quant(device) if sample["input"].dtype == dtype]
    assert {"up" in sample for sample in chosen} == {False, True}
    for sample in chosen:
        s = sample["output_s"]
        wanted = {**sample, "output_q": sample["output_q"].double()}
        wanted["output_s"] = s.clone() if s.dtype is torch.int32 else s.double()
        family.clamped_swiglu_quant(**sample)
        reference.clamped_swiglu_quant(**wanted)
        rounding = 0 if sample.get("scale_ue8m0") else 2**-7
        torch.testing.assert_close(s.double(), wanted["output_s"].double(), rtol=rounding, atol=0)
        torch.testing.assert_close(sample["output_q"].double(), wanted["output_q"], rtol=2**-4 * 1.1, atol=2**-9)


def test_nan_infinity_and_zeros_stay_in_their_group(device: torch.device):
    """Only NaN of a value passes its limit; a value of -1 makes a zero."""
    gate, up = torch.full((1, 512), 7.0, device=device).bfloat16(), torch.zeros(1, 512, device=device).bfloat16()
    up[0, :128] = -1
    up[0, 128], up[0, 129] = math.nan, math.inf
    gate[0, 256], gate[0, 257] = math.inf, -math.inf
    gate[0, 384:] = math.nan
    q, s = torch.empty(1, 512, dtype=FP8, device=device), torch.empty(1, 4, device=device)
    for flags in ({}, {"round_first": True}, {"round_each": True}):
        family.clamped_swiglu_quant(gate, q, s, up, limit=7, **flags)
        assert s[0].tolist() == pytest.approx([SMALLEST_SCALE, 56 / 448, 7 / 448, SMALLEST_SCALE], rel=2**-8)
        assert (q[0, :128].float() == 0).all()
        assert q[0, 128:131].float().tolist() == pytest.approx([math.nan, 448, 56], nan_ok=True)
        assert q[0, 256].float() == q[0, 258].float() == 448
        assert q[0, 384:].float().isnan().all()
    family.clamped_swiglu_quant(gate, q, s, up, limit=math.inf)
    assert s[0, 1:3].tolist() == [LARGEST_SCALE, LARGEST_SCALE]


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)], ids=str)
def test_gates_and_values_in_turn_have_the_bytes_of_those_apart(dtype: torch.dtype, device: torch.device):
    """Of all values of 16 bits as gate and as value."""
    gate = torch.arange(1 << 16, dtype=torch.int32, device=device).to(torch.int16).view(dtype).reshape(-1, 256)
    up = gate.flip(1).roll(3, 0)
    in_turn = torch.stack([gate, up], dim=-1).flatten(1)
    for flags in ({}, {"round_first": True}, {"round_each": True}):
        for limit in (7.0, math.inf):
            found = []
            for call in ({"input": in_turn, "is_interleaved": True}, {"input": gate, "up": up}):
                q = torch.full(gate.shape, 0x2A, dtype=torch.uint8, device=device)
                s = torch.full((256, 2), 42.0, device=device)
                family.clamped_swiglu_quant(**call, output_q=q.view(FP8), output_s=s, limit=limit, **flags)
                found.append((q, s))
            assert torch.equal(found[0][0], found[1][0])
            assert torch.equal(found[0][1], found[1][1])


def test_gates_and_values_in_turn_are_whole_words(device: torch.device):
    call = {**good_call(device), "is_interleaved": True}
    wide = torch.ones(3, 514, device=device).bfloat16()
    with pytest.raises(ValueError, match=r"clamped_swiglu_quant: is_interleaved is for an input of .*: leave up out"):
        family.clamped_swiglu_quant(**call, up=torch.ones(3, 512, device=device))
    for x, text in (
        (call["input"], r"DType mismatch: expected one of \[float16, bfloat16\] but got float32"),
        (wide[:, :511], "2 parts of equal size, got 511 elements"),
        (wide[:, 1:513], "expected rows of whole words of 4 bytes"),
    ):
        with pytest.raises(TensorMatchError, match=rf"(?s)match failed for input, .*{text}"):
            family.clamped_swiglu_quant(**call | {"input": x})


def test_no_row_and_no_column(device: torch.device):
    for rows, size in ((0, 256), (3, 0)):
        x = torch.ones(rows, 2 * size, device=device, dtype=torch.bfloat16)
        q = torch.empty(rows, size, dtype=FP8, device=device)
        for s in (torch.ones(rows, 1, device=device), torch.ones(rows, size // 128, device=device)):
            family.clamped_swiglu_quant(x, q, s)
            assert (s == SMALLEST_SCALE).all(), "a row without elements has the smallest scale"


def good_call(device: torch.device) -> dict[str, Any]:
    return {
        "input": torch.ones(3, 512, device=device),
        "output_q": torch.zeros(3, 256, device=device).to(FP8),
        "output_s": torch.zeros(3, 1, device=device),
    }


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"limit": 0.0}, "limit must be positive in float32, got 0"),
        ({"limit": math.nan}, "limit must be positive in float32, got nan"),
        ({"alpha": math.inf}, "alpha must be a finite number of float32, got inf"),
        ({"output_s": torch.zeros(3, 1).int()}, "output_s of int32 holds exponents .* so it needs scale_ue8m0=True"),
        ({"output_s": torch.ones(1), "is_static": True, "scale_ue8m0": True}, "scale_ue8m0 is for scales that are"),
    ],
)
def test_options_that_do_not_fit(change: dict[str, Any], text: str, device: torch.device):
    given = {name: one.to(device) if isinstance(one, torch.Tensor) else one for name, one in change.items()}
    with pytest.raises(ValueError, match=f"^clamped_swiglu_quant: {text}"):
        family.clamped_swiglu_quant(**good_call(device) | given)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"input": torch.zeros(3, 511)}, "input, .*2 parts of equal size, got 511 elements"),
        ({"up": torch.zeros(3, 512)}, "output_q, .*expected 512 but got 256"),
        ({"input": torch.zeros(3, 256), "up": torch.zeros(3, 128)}, "up, .*expected 256 but got 128"),
        ({"input": torch.zeros(3, 256), "up": torch.zeros(2, 256)}, "up, .*expected 3 but got 2"),
        ({"input": torch.zeros(3, 256), "up": torch.zeros(3, 256).half()}, "up, .*got float16"),
        ({"output_q": torch.zeros(3, 256)}, r"output_q, .*one of \[float8_e4m3fn, int8\] but got float32"),
        ({"output_s": torch.zeros(3, 3)}, "output_s, .*expected 2 but got 3"),
    ],
)
def test_tensors_that_do_not_fit(change: dict[str, torch.Tensor], text: str, device: torch.device):
    given = {name: one.to(device) for name, one in change.items()}
    with pytest.raises(TensorMatchError, match=rf"(?s)^clamped_swiglu_quant\(\): Tensor match failed for {text}"):
        family.clamped_swiglu_quant(**good_call(device) | given)


def test_arguments_that_share_memory(device: torch.device):
    call = good_call(device)
    for change in (
        {"output_s": call["input"][:, :1]},
        {"output_q": call["output_q"][:1].expand(3, 256)},
        {"output_q": call["input"].view(FP8)[:, :256]},
    ):
        with pytest.raises(ValueError, match="share memory with each other or with other rows of"):
            family.clamped_swiglu_quant(**call | change)
