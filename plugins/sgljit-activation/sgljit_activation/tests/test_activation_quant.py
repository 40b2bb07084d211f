"""The activation with FP8 out, on both devices: within half a step of float64, and the bits of two ops if rounded."""

from __future__ import annotations

import functools
import itertools
import math
import re

import pytest
import torch

from sgljit_activation import reference, samples
from sgljit_core import ops
from sgljit_core.errors import TensorMatchError
from sgljit_quant.tests.powers import check_powers, in_groups, layouts

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
FP8 = torch.float8_e4m3fn
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-126, torch.finfo(torch.float32).max
each_dtype = pytest.mark.parametrize(
    "dtype", [x if x is torch.bfloat16 else pytest.param(x, marks=pytest.mark.slow) for x in DTYPES], ids=str
)  # each compiles programs of its own
family = ops["activation"]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device  # "cuda" with its index


def check_accurate(exact: torch.Tensor, q: torch.Tensor, s: torch.Tensor, is_static: bool) -> None:
    """Within half a step of e4m3 of the exact quotient, but for the float32 arithmetic before it."""
    y, scale = in_groups(exact, s.double())
    if is_static:
        y = y.clamp(-448 * scale, 448 * scale)
    else:
        wanted = (y.abs().amax(-1, keepdim=True) / 448).clamp(min=SMALLEST_SCALE)
        assert ((scale - wanted).abs() <= wanted * 2**-14).all()
    error = (in_groups(q.double(), s)[0] * scale - y).abs()
    assert (error <= (y.abs() / 16 + scale * 2**-10) * 1.001 + y.abs() * 2**-14).all()


def chain(activated: torch.Tensor, s: torch.Tensor, is_static: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The bytes and scales of a quantisation of what another op has stored."""
    y, scale = in_groups(activated.float(), s)
    if not is_static:
        largest = y.abs().nan_to_num(nan=0.0, posinf=math.inf).amax(-1, keepdim=True)
        scale = (largest / torch.full_like(largest, 448)).clamp(SMALLEST_SCALE, LARGEST_SCALE)
    q = (y * scale.reciprocal()).clamp(-448, 448).to(FP8).view(activated.shape)
    return torch.where(q.float().isnan(), 0x7F, q.view(torch.uint8)), scale.reshape(s.shape)


def check(x: torch.Tensor, s: torch.Tensor, is_static: bool = False) -> None:
    """Both forms, into an output between others."""
    rows, size = x.shape[0], x.shape[1] // 2
    before, given = x.clone(), s.clone()
    wide = torch.full((rows, size + 32), 0x55, dtype=torch.uint8, device=x.device)
    q = wide[:, 16 : 16 + size].view(FP8)
    family.silu_and_mul_quant(x, q, s, is_static=is_static)
    exact = reference.silu_and_mul(x, torch.empty(q.shape, dtype=torch.float64, device=x.device))
    check_accurate(exact, q, s, is_static)
    for flag, round_first in (("round_first", False), ("round_each", True)):
        wide[:, 16 : 16 + size] = 0x2A
        s.copy_(given)
        family.silu_and_mul_quant(x, q, s, is_static=is_static, **{flag: True})
        expected_q, expected_s = chain(family.silu_and_mul(x, round_first=round_first), given, is_static)
        assert torch.equal(q.view(torch.uint8), expected_q.to(torch.uint8))
        assert torch.equal(s, expected_s)
    assert torch.equal(x, before)
    assert (wide[:, :16] == 0x55).all()
    assert (wide[:, 16 + size :] == 0x55).all()


@pytest.mark.parametrize("kind", ["given", "row", "group", "words"])
def test_each_step_rounded_gives_the_bits_of_pytorch_and_a_quantisation(kind: str, device: torch.device):
    """SiLU, the product and the quantisation, a kernel each: bytes that one rounding less would change."""
    torch.manual_seed(0)
    x = (torch.randn(33, 2 * 640, device=device) * 4).bfloat16()
    gate, up = x.chunk(2, dim=1)
    y = torch.nn.functional.silu(gate) * up
    options = {"is_static": kind == "given", "scale_ue8m0": kind == "words"}
    scales = {
        "given": torch.full((1,), 0.02, device=device),
        "row": torch.empty(33, 1, device=device),
        "group": torch.empty(33, 5, device=device),
        "words": torch.zeros(33, 2, dtype=torch.int32, device=device),
    }[kind]
    expected_q, expected_s = torch.empty_like(y, dtype=FP8), scales.clone()
    if kind in ("group", "words"):
        ops["quant"].per_token_group_quant_fp8(y, expected_q, expected_s, 128, eps=0.0, scale_ue8m0=kind == "words")
    else:
        bytes_, expected_s = chain(y, scales, kind == "given")
        expected_q = bytes_.to(torch.uint8).view(FP8)
    found = []
    for flags in ({"round_each": True}, {"round_each": True, "round_first": True}, {"round_first": True}):
        q = torch.full_like(y, 42).to(FP8)
        family.silu_and_mul_quant(x, q, scales, **options, **flags)
        found.append(q.view(torch.uint8))
        if "round_each" in flags:
            assert torch.equal(q.view(torch.uint8), expected_q.view(torch.uint8))
            assert torch.equal(scales, expected_s)
    assert not torch.equal(found[0], found[2]), "round_first alone should differ"


@pytest.mark.slow
@each_dtype
def test_any_size_and_scale(dtype: torch.dtype, device: torch.device):
    torch.manual_seed(0)
    for rows, size in itertools.product((1, 3, 129), (1, 65, 128, 384, 6144)):
        x = (torch.randn(rows, 2 * size, device=device) * 4).to(dtype)
        check(x, torch.empty(rows, 1, device=device))
        check(x, torch.full((1,), 0.02, device=device), is_static=True)
        if size % 128 == 0:
            check(x, torch.empty(rows, size // 128, device=device))
            check(x, torch.empty(size // 128, rows + 3, device=device).t()[:rows])


@each_dtype
def test_long_rows(dtype: torch.dtype, device: torch.device):
    """On CUDA blocks share a long row where rows are few; the longest is held by none."""
    torch.manual_seed(0)
    for rows, size in ((1, 2048), (1, 9216), (3, 18432), (17, 18432), (1, 33152)):
        wide = (torch.randn(rows, 2 * size + 1, device=device) * 4).to(dtype)
        for x in (wide[:, :-1].contiguous(), wide[:, 1:]):
            check(x, torch.empty(rows, 1, device=device))
            check(x, torch.empty(rows, size // 128, device=device))


@each_dtype
def test_rows_may_be_apart_and_begin_anywhere(dtype: torch.dtype, device: torch.device):
    wide = torch.randn(5, 1000, device=device).to(dtype)
    for first, size in ((0, 256), (1, 256), (3, 100)):
        check(wide[:, first : first + 2 * size], torch.empty(5, 1, device=device))
        if size % 128 == 0:
            check(wide[:, first : first + 2 * size], torch.empty(5, size // 128, device=device))


def check_each(x: torch.Tensor, s: torch.Tensor, dtype: torch.dtype = FP8) -> None:
    """Scales of powers of two. Rounded first: the bits of ``silu_and_mul``, and of a quantisation after it."""
    run = functools.partial(family.silu_and_mul_quant, x, scale_ue8m0=True)
    y = family.silu_and_mul(x)
    check_powers(functools.partial(run, round_first=True), y.double(), s, dtype, slack=2**-18, rounded=y)
    exact = reference.silu_and_mul(x, torch.empty(y.shape, dtype=torch.float64, device=x.device))
    check_powers(run, exact, s, dtype, slack=2**-14)
    y = family.silu_and_mul(x, round_first=True)
    check_powers(functools.partial(run, round_each=True), y.double(), s, dtype, slack=2**-18, rounded=y)


@each_dtype
def test_powers_of_two_in_every_layout(dtype: torch.dtype, device: torch.device):
    torch.manual_seed(0)
    for rows, groups in ((1, 1), (3, 4), (33, 5), (2, 12)):
        x = torch.randn(rows, 2 * 128 * groups, device=device)
        x = (x * torch.randn(rows, 2 * groups, device=device).exp().repeat_interleave(128, 1)).to(dtype)
        for s in layouts(rows, groups, device):
            check_each(x, s)
        check_each(x, torch.empty(rows, 1, device=device))


@pytest.mark.slow
def test_powers_of_two_for_int8(device: torch.device):
    torch.manual_seed(0)
    x = torch.randn(5, 2 * 640, device=device).bfloat16()
    for s in layouts(5, 5, device)[1::2]:
        check_each(x, s, torch.int8)


def test_powers_of_two_of_rows_anywhere_and_of_none(device: torch.device):
    wide = torch.randn(5, 3000, device=device).bfloat16()
    for first in (0, 1, 3) if device.type == "cpu" else (0, 4, 8):  # a warp shares a group: loads of four elements
        check_each(wide[:, first : first + 1280], layouts(5, 5, device)[3])
    q = torch.empty(0, 640, dtype=FP8, device=device)
    family.silu_and_mul_quant(wide[:0, :1280], q, layouts(0, 5, device)[2], scale_ue8m0=True)


def test_powers_of_zeros_nan_and_infinity(device: torch.device):
    gate, up = torch.full((1, 4 * 128), 20.0, device=device), torch.ones(1, 4 * 128, device=device)
    up[0, :128] = 0
    up[0, 128] = math.inf
    up[0, 256:384] = math.nan
    up[0, 384:] = 448 / 20
    q, packed = torch.empty(1, 512, dtype=FP8, device=device), torch.zeros(1, 1, dtype=torch.int32, device=device)
    family.silu_and_mul_quant(torch.cat([gate, up], 1).bfloat16(), q, packed, round_first=True, scale_ue8m0=True)
    assert packed.view(torch.uint8)[0].tolist() == [1, 254, 1, 127]
    assert q[0, 127:130].float().tolist() == [0, 448, 0]
    assert q[0, 256:384].float().isnan().all()
    assert (q[0, 384:].float() == 448).all()


def test_powers_of_two_that_do_not_fit(device: torch.device):
    x, q = torch.ones(3, 1280, device=device), torch.zeros(3, 640, device=device).to(FP8)
    words = torch.zeros(3, 2, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match=r"^silu_and_mul_quant: output_s of int32 .* so it needs scale_ue8m0=True"):
        family.silu_and_mul_quant(x, q, words)
    with pytest.raises(ValueError, match=r"^silu_and_mul_quant: scale_ue8m0 is for scales that are computed"):
        family.silu_and_mul_quant(x, q, torch.ones(1, device=device), is_static=True, scale_ue8m0=True)
    for wrong in (words[:2], words[:, :1], torch.zeros(3, 5, dtype=torch.int32, device=device)):
        with pytest.raises(TensorMatchError, match=r"(?s)output_s, .*expected \[3, 2\], a word for each 512 elements"):
            family.silu_and_mul_quant(x, q, wrong, scale_ue8m0=True)
    with pytest.raises(TensorMatchError, match="a row of whole groups of 128; input has 600"):
        family.silu_and_mul_quant(x[:, :1200], q[:, :600], words, scale_ue8m0=True)
    with pytest.raises(ValueError, match="rows of output_s share memory with each other"):
        family.silu_and_mul_quant(x, q, words[:1].expand(3, 2), scale_ue8m0=True)


@each_dtype
def test_samples_against_the_reference(dtype: torch.dtype, device: torch.device):
    chosen = [sample for sample in samples.silu_and_mul_quant(device) if sample["input"].dtype == dtype]
    assert chosen
    for sample in chosen:
        s = sample["output_s"]
        wanted = {**sample, "output_q": sample["output_q"].double()}
        wanted["output_s"] = s.clone() if s.dtype is torch.int32 else s.double()
        family.silu_and_mul_quant(**sample)
        reference.silu_and_mul_quant(**wanted)
        rounding = 0 if sample.get("scale_ue8m0") else 2**-7
        torch.testing.assert_close(s.double(), wanted["output_s"].double(), rtol=rounding, atol=0)
        torch.testing.assert_close(sample["output_q"].double(), wanted["output_q"], rtol=2**-4 * 1.1, atol=2**-9)


def test_no_row_and_no_column(device: torch.device):
    for rows, size in ((0, 256), (3, 0)):
        x = torch.ones(rows, 2 * size, device=device, dtype=torch.bfloat16)
        q = torch.empty(rows, size, dtype=FP8, device=device)
        for s in (torch.ones(rows, 1, device=device), torch.ones(rows, size // 128, device=device)):
            family.silu_and_mul_quant(x, q, s)
            assert (s == 2.0**-126).all(), "a row without elements has the smallest scale"


@each_dtype
def test_zeros_nan_and_infinity_stay_in_their_group(dtype: torch.dtype, device: torch.device):
    gate = torch.full((1, 4 * 128), 20.0, device=device, dtype=dtype)
    up = torch.ones_like(gate)
    up[0, :128] = 0
    up[0, 128], up[0, 129] = math.nan, math.inf
    up[0, 256:384] = math.nan
    x = torch.cat([gate, up], 1)
    q, s = torch.empty(1, 512, dtype=FP8, device=device), torch.empty(1, 4, device=device)
    for flags in ({}, {"round_first": True}, {"round_each": True}):
        family.silu_and_mul_quant(x, q, s, **flags)
        assert s[0].tolist() == pytest.approx([SMALLEST_SCALE, LARGEST_SCALE, SMALLEST_SCALE, 20 / 448], rel=1e-6)
        bytes_ = q.view(torch.uint8)[0]
        assert (bytes_[:128] == 0).all()
        assert bytes_[128:131].tolist() == [0x7F, 0x7E, 0]
        assert (bytes_[256:384] == 0x7F).all()
        assert (q[0, 384:].float() == 448).all()


def test_a_given_scale_that_is_not_positive(device: torch.device):
    gate, up = torch.full((1, 4), 20.0, device=device), torch.tensor([[1.0, -1.0, 0.0, 2.0]], device=device)
    x, nan = torch.cat([gate, up], 1), math.nan
    for given, floats, integers in (
        (0.0, [448, -448, nan, 448], [127, -128, 0, 127]),
        (math.inf, [0, 0, 0, 0], [0, 0, 0, 0]),
        (nan, [nan] * 4, [0] * 4),
    ):
        for dtype, expected in ((FP8, floats), (torch.int8, integers)):
            q = torch.full((1, 4), 7.0, device=device).to(dtype)
            family.silu_and_mul_quant(x, q, torch.tensor([given], device=device), is_static=True)
            assert q[0].float().tolist() == pytest.approx(expected, nan_ok=True)


BAD = {
    "dtype of input": ({"input": torch.zeros(3, 512).int()}, "input", "float16, bfloat16] but got int32"),
    "odd": ({"input": torch.zeros(3, 511)}, "input", "2 parts of equal size, got 511 elements"),
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
    "one scale that is not given": ({"output_s": torch.zeros(1)}, "output_s", "expected 2 but got 1"),
    "a given scale for each row": ({"output_s": torch.zeros(3), "is_static": True}, "output_s", "expected 1 but got 3"),
    "part of a group": (
        {
            "input": torch.zeros(3, 400),
            "output_q": torch.zeros(3, 200).to(FP8),
            "output_s": torch.zeros(3, 2),
        },
        "input",
        "expected whole groups of 128 but got 200",
    ),
}


def good_call(device: torch.device) -> dict[str, torch.Tensor]:
    return {
        "input": torch.ones(3, 512, device=device),
        "output_q": torch.zeros(3, 256, device=device).to(FP8),
        "output_s": torch.zeros(3, 1, device=device),
    }


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_match_is_refused_with_the_cause(case: str, device: torch.device):
    change, name, text = BAD[case]
    call = good_call(device) | {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in change.items()}
    with pytest.raises(
        TensorMatchError, match=rf"(?s)^\w+\(\): Tensor match failed for {name}, Tensor<.*{re.escape(text)}"
    ):
        family.silu_and_mul_quant(**call)


def test_arguments_that_share_memory(device: torch.device):
    call = good_call(device)
    for change in (
        {"output_s": call["input"][:, :1]},
        {"output_q": call["output_q"][:1].expand(3, 256)},
        {"output_q": call["input"].view(FP8)[:, :256]},
    ):
        with pytest.raises(ValueError, match="share memory with each other or with other rows of"):
            family.silu_and_mul_quant(**call | change)
