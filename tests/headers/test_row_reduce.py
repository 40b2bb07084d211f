"""Row reductions (row_reduce.h): layouts, types, sums and maxima, on the CPU and on a GPU; PyTorch is the judge."""

from __future__ import annotations

import itertools
import shutil

import pytest
import torch
from headers import toolbox

from sgljit_core import KernelFamily
from sgljit_core.errors import TensorMatchError

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
EXPORTS = ["rmsnorm", "fused_add_rmsnorm", "standardised", "by_rows", "by_largest", "softmax"]
FP8 = torch.float8_e4m3fn
ROUNDED_ONCE = {torch.float16: 2**-11, torch.bfloat16: 2**-8, torch.float32: 2**-20, FP8: 2**-4}
NAN = float("nan")
# Registers and beyond; a part of a warp, a warp, blocks; whole vectors and single elements.
COLUMNS = [1, 2, 3, 8, 24, 64, 65, 96, 128, 136, 256, 512, 768, 1000, 1024, 1025, 2048, 3072, 5120, 12288, 16384, 70000]


@pytest.fixture(scope="module")
def reductions(tmp_path_factory):
    toolbox.find()
    site = tmp_path_factory.mktemp("site")
    csrc = site / "row_reductions_on_disk" / "csrc"
    csrc.mkdir(parents=True)
    (csrc.parent / "__init__.py").touch()
    for name in ("row_reductions.h", "row_reductions.cpp"):
        shutil.copy(toolbox.CSRC / name, csrc)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        yield KernelFamily("row_reductions", "row_reductions_on_disk").load_host(
            "row_reductions",
            cpp_files=["row_reductions.cpp"],
            cpp_wrappers=[(name, name) for name in EXPORTS],
            extra_cflags=toolbox.WARNINGS,
        )


def expect(got: torch.Tensor, expected: torch.Tensor) -> None:
    """``got`` is ``expected``, which is in float64, rounded once."""
    smallest = 2**-10 if got.dtype == FP8 else 1e-6
    torch.testing.assert_close(
        got.double(), expected, rtol=1.02 * ROUNDED_ONCE[got.dtype], atol=smallest, equal_nan=True
    )


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_every_size(reductions, device, dtype):
    for columns, rows in itertools.product(COLUMNS, (1, 3, 300)):
        if device == "cpu" and columns * rows > 2**20:
            continue
        x = torch.randn(rows, columns, device=device).to(dtype)
        weight = torch.randn(columns, device=device).to(dtype)
        out = torch.full((rows + 1, columns), NAN, dtype=dtype, device=device)
        reductions.rmsnorm(x, weight, out[:rows], 1e-6)
        expect(out[:rows], rms_norm(x, weight))
        assert out[rows].isnan().all(), "nothing is written behind the last row"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_passes_may_combine_their_terms_in_two_ways(reductions, device, dtype):
    """Softmax: a maximum, then a sum. All elements below zero show a maximum that begins with 0."""
    for columns, rows in itertools.product((1, 8, 65, 1000, 4096, 12288, 70000), (1, 5)):
        x = (20 * torch.randn(rows, columns, device=device) - 200).to(dtype)
        out = torch.full_like(x, NAN)
        reductions.softmax(x, out)
        expected = x.double().softmax(-1)
        torch.testing.assert_close(
            out.double(), expected, rtol=1.02 * ROUNDED_ONCE[dtype] + 2e-5, atol=1e-7, msg=f"{columns} columns"
        )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("columns", [64, 65, 1024, 4096])
def test_any_stride_and_alignment(reductions, device, columns):
    weight = torch.randn(columns + 1, device=device).bfloat16()
    for gap, offset, out_gap, out_offset in itertools.product((0, 1, 8), (0, 1, 8), (0, 1), (0, 1)):
        buffer = torch.full((9 * (columns + gap) + offset,), NAN, device=device).bfloat16()
        x = buffer.as_strided((9, columns), (columns + gap, 1), offset)
        x.copy_(torch.randn(9, columns))
        target = torch.full((9 * (columns + out_gap) + out_offset,), NAN, device=device).bfloat16()
        out = target.as_strided((9, columns), (columns + out_gap, 1), out_offset)
        reductions.rmsnorm(x, weight[out_offset:][:columns], out, 1e-6)
        expect(out, rms_norm(x, weight[out_offset:][:columns]))
        assert (~target.isnan()).sum() == out.numel()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "out_dtype"), list(itertools.product(DTYPES, (*DTYPES, FP8))))
def test_inputs_and_outputs_may_have_two_types(reductions, device, dtype, out_dtype):
    x, weight = torch.randn(5, 256, device=device).to(dtype), torch.randn(256, device=device).to(dtype)
    out = torch.full(x.shape, NAN, device=device).to(out_dtype)
    reductions.rmsnorm(x, weight, out, 1e-6)
    expect(out, rms_norm(x, weight))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_two_inputs_are_written_again(reductions, device, dtype):
    for rows, columns in itertools.product((1, 7, 300), (1, 64, 100, 1000, 4096, 5120)):
        x, residual = torch.randn(2, rows, columns, device=device).to(dtype)
        weight = torch.randn(columns, device=device).to(dtype)
        total = x.double() + residual.double()
        reductions.fused_add_rmsnorm(x, residual, weight, 1e-6)
        expect(x, rms_norm(total, weight))
        expect(residual, total)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_combined_inputs_two_passes_and_a_result_for_each_row(reductions, device, dtype):
    for rows, columns in itertools.product((1, 7, 300), (2, 64, 100, 1001, 4096, 5120, 16384)):
        if device == "cpu" and columns * rows > 2**20:
            continue
        a, b = torch.randn(2, rows, columns, device=device).to(dtype)
        difference, out = torch.full((2, rows, columns), NAN, dtype=dtype, device=device)
        deviations = torch.full((rows + 1,), NAN, device=device)
        reductions.standardised(a, b, difference, out, deviations)
        wide = a.double() - b.double()
        deviation, mean = torch.std_mean(wide, -1, correction=0, keepdim=True)
        expect(difference, wide)
        expect(deviations[:rows, None], deviation)
        assert deviations[rows].isnan()
        # A row of two equal elements has no deviation.
        torch.testing.assert_close(out.double(), (wide - mean) / deviation, rtol=2**-8, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_combined_may_replace_an_input(reductions, device):
    a, b = torch.randn(2, 9, 4096, device=device)
    wide = a.double() - b.double()
    reductions.standardised(a, b, b, a, torch.empty(9, device=device))
    expect(b, wide)
    expect(a, (wide - wide.mean(-1, keepdim=True)) / wide.std(-1, correction=0, keepdim=True))


@pytest.mark.parametrize("device", DEVICES)
def test_rows_without_elements_have_a_result(reductions, device):
    nothing, deviations = torch.empty(3, 0, device=device), torch.full((3,), 7.0, device=device)
    reductions.standardised(nothing, nothing, nothing.clone(), nothing.clone(), deviations)
    assert deviations.isnan().all(), "0 / 0"


def test_one_type_for_inputs_and_outputs(reductions):
    x, half = torch.zeros(2, 8), torch.zeros(2, 8, dtype=torch.float16)
    with pytest.raises(TensorMatchError, match=r"(?s)for out, .*: expected float32, the dtype of a, but got float16"):
        reductions.standardised(x, x, x.clone(), half, torch.empty(2))


@pytest.mark.parametrize("device", DEVICES)
def test_a_maximum_ignores_nan(reductions, device):
    for columns in (1, 31, 64, 5000):
        x = -torch.rand(6, columns, device=device) - 1
        if columns > 1:
            x[2, columns // 2] = NAN
        out = torch.empty_like(x)
        reductions.by_largest(x, out)
        largest = x.double().abs().nan_to_num(0).amax(-1, keepdim=True)
        expect(out, x.double() / largest)


@pytest.mark.parametrize("device", DEVICES)
def test_a_sum_of_many_terms_is_exact(reductions, device):
    columns = 2**22
    x = torch.ones(1, columns, device=device)
    x[0, 0] = 2**10  # larger than any lane's share by far
    out = torch.empty_like(x)
    reductions.rmsnorm(x, torch.ones(columns, device=device), out, 1e-6)
    expect(out, rms_norm(x, torch.ones(columns, device=device)))


@pytest.mark.parametrize("device", DEVICES)
def test_results_are_the_same_in_each_run(reductions, device):
    x, weight = torch.randn(300, 5120, device=device), torch.randn(5120, device=device)
    first, second = torch.empty(2, 300, 5120, device=device)
    reductions.rmsnorm(x, weight, first, 1e-6)
    reductions.rmsnorm(x, weight, second, 1e-6)
    assert torch.equal(first, second)


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (2, 0, 8)])
def test_nothing_to_do_is_no_error(reductions, shape):
    x = torch.empty(shape)
    reductions.rmsnorm(x, torch.ones(shape[-1]), torch.empty_like(x), 1e-6)


def test_what_cannot_be_right_is_refused_by_name(reductions):
    x, weight = torch.zeros(4, 8), torch.zeros(8)
    with pytest.raises(TensorMatchError, match=r"(?s)for weight, .*expected 8 but got 7"):
        reductions.rmsnorm(x, weight[:7], torch.empty_like(x), 1e-6)
    with pytest.raises(
        TensorMatchError, match=r"(?s)for weight, .*expected a shared row, of host::shared_row, but got"
    ):
        reductions.by_rows(x, x.clone(), torch.empty_like(x))
    with pytest.raises(ValueError, match="rows of out share memory with each other or with other rows of x"):
        reductions.rmsnorm(x[:-1], weight, x[1:], 1e-6)
