"""Row programs without a reduction: layouts, types, functions, errors. PyTorch in float64 is the judge."""

from __future__ import annotations

import itertools
import shutil

import pytest
import torch
from headers import toolbox

from sgljit_core import KernelFamily
from sgljit_core.errors import CompileError, TensorMatchError

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ROUNDED_ONCE = {torch.float16: 2**-11, torch.bfloat16: 2**-8, torch.float32: 2**-22}
EXPORTS = ["affine", "weighted", "sum_and_product", "function", "into_one_row", "third_half", "silu_and_mul"]
NAN = float("nan")


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    toolbox.find()
    site = tmp_path_factory.mktemp("site")
    csrc = site / "maps_on_disk" / "csrc"
    csrc.mkdir(parents=True)
    (csrc.parent / "__init__.py").touch()
    for name in ("maps.h", "maps.cpp"):
        shutil.copy(toolbox.CSRC / name, csrc)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        yield KernelFamily("maps", "maps_on_disk")


@pytest.fixture(scope="module")
def maps(family):
    return family.load_host(
        "maps",
        cpp_files=["maps.cpp"],
        cpp_wrappers=[(name, name) for name in EXPORTS],
        extra_cflags=toolbox.WARNINGS,
    )


def expect(got: torch.Tensor, expected: torch.Tensor) -> None:
    """``got`` is ``expected``, which is in float64, rounded once."""
    close = {"rtol": 1.01 * ROUNDED_ONCE[got.dtype], "atol": 1e-6, "equal_nan": True}
    torch.testing.assert_close(got.double(), expected, **close)


def strided(rows: int, columns: int, stride: int, offset: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Rows inside a larger buffer, which is NaN elsewhere."""
    buffer = torch.full((rows * stride + offset + columns,), NAN, dtype=dtype, device=device)
    return buffer.as_strided((rows, columns), (stride, 1), offset)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("to", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_an_output_of_float8_is_rounded_once_and_saturates(maps, device, to):
    largest = torch.finfo(to).max
    for dtype, columns in itertools.product(DTYPES, (1, 64, 131)):
        x = 10 ** (8 * torch.rand(3, columns, device=device) - 4) * torch.randn(3, columns, device=device).sign()
        x = x.clamp(-30000, 30000).to(dtype)
        x[1, 0] = float("inf") if dtype != torch.float32 else -NAN
        out = torch.full((3, columns + 5), 3.0, device=device).to(to)
        maps.affine(x, out[:, :columns], 4.0, 0.0)
        wanted = (4 * x.double()).clamp(-largest, largest).to(to).float()
        assert torch.equal(out[:, :columns].float().nan_to_num(7), wanted.nan_to_num(7))
        assert (out[:, columns:].float() == 3).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_an_input_of_float8_is_read_exactly(maps, device, dtype):
    x = torch.arange(256, dtype=torch.uint8, device=device).view(dtype)[None]
    out = torch.full((1, 256), 7.0, device=device)
    maps.affine(x, out, 1.0, 0.0)
    assert torch.equal(out.nan_to_num(7777), x.float().nan_to_num(7777))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_layout_gives_the_result_and_nothing_else_is_written(maps, device, dtype):
    layouts = [(gap, offset) for gap in (0, 1, 8) for offset in (0, 1, 8)]
    shapes = itertools.product((1, 2, 37), (1, 7, 8, 63, 64, 65, 1000))
    for number, (rows, columns) in enumerate(shapes):
        # every layout with every other, spread over the shapes
        for (gap, offset), (out_gap, out_offset) in zip(
            layouts, layouts[number % 9 :] + layouts[: number % 9], strict=True
        ):
            x = strided(rows, columns, columns + gap, offset, dtype, device)
            x.copy_(torch.randn(rows, columns))
            out = strided(rows, columns, columns + out_gap, out_offset, dtype, device)
            maps.affine(x, out, 3.0, -1.0)
            expect(out, x.double() * 3 - 1)
            whole = out.as_strided((out.untyped_storage().nbytes() // out.element_size(),), (1,), 0)
            assert (~whole.isnan()).sum() == rows * columns


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("dtype", "out_dtype"),
    [
        pytest.param(*pair, marks=[pytest.mark.slow] if torch.float16 in pair else [])
        for pair in itertools.product(DTYPES, DTYPES)
    ],
)
def test_inputs_and_outputs_may_have_two_types(maps, device, dtype, out_dtype):
    x = torch.randn(5, 136, device=device).to(dtype)
    out = torch.full(x.shape, NAN, dtype=out_dtype, device=device)
    maps.affine(x, out, 0.5, 2.0)
    expect(out, x.double() * 0.5 + 2)


@pytest.mark.parametrize("device", DEVICES)
def test_a_shared_row_goes_with_every_row(maps, device):
    for rows, columns in ((1, 64), (3, 64), (3, 65), (70, 1)):
        x = torch.randn(2, rows, columns, device=device)
        weight, bias = torch.randn(2, columns, device=device)
        out = torch.full_like(x, NAN)
        maps.weighted(x, weight, bias, out)
        expect(out, x.double() * weight.double() + bias.double())


@pytest.mark.parametrize("device", DEVICES)
def test_four_inputs_and_two_outputs(maps, device):
    inputs = torch.randn(4, 9, 72, device=device).bfloat16()
    total, product = torch.full((2, 9, 72), NAN, device=device)
    maps.sum_and_product(*inputs, total, product)
    expect(total, inputs.double().sum(0))
    expect(product, inputs.double().prod(0))


@pytest.mark.parametrize("device", DEVICES)
def test_the_inputs_may_be_parts_of_one_tensor(maps, device):
    for size in (1, 33, 64):
        x = torch.randn(5, 2 * size, device=device).half()
        out = torch.full((5, size), NAN, dtype=torch.float16, device=device)
        maps.silu_and_mul(x, out)
        gate, value = x.double().chunk(2, 1)
        expect(out, torch.nn.functional.silu(gate) * value)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_only_the_numbers_of_rows_and_columns_must_agree(maps, device):
    x = torch.randn(2, 3, 8, device=device)
    out = torch.full((6, 8), NAN, device=device)
    maps.affine(x, out, 2.0, 1.0)
    expect(out, x.double().view(6, 8) * 2 + 1)
    maps.affine(x[0, :1].expand(6, 8), out, 2.0, 1.0)  # at a stride of 0
    expect(out, x[0, 0].double().expand(6, 8) * 2 + 1)
    with pytest.raises(TensorMatchError, match="expected all rows at one stride"):
        maps.affine(torch.zeros(2, 5, 8, device=device)[:, :3], out, 2.0, 1.0)


@pytest.mark.parametrize("device", DEVICES)
def test_an_output_may_be_an_input_row_by_row(maps, device):
    for x in (torch.randn(3, 40, device=device), torch.randn(3, 60, device=device)[:, :40]):
        expected = x.double() * 2 + 1
        maps.affine(x, x, 2.0, 1.0)
        expect(x, expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (0,), (2, 0, 8)])
def test_nothing_to_do_is_no_error(maps, device, shape):
    x = torch.empty(shape, device=device)
    maps.affine(x, torch.empty_like(x), 1.0, 1.0)


@pytest.mark.parametrize("device", DEVICES)
def test_one_long_row_and_many_short_ones(maps, device):
    for shape in ((1_000_003,), (300_001, 1), (100_003, 3)):
        x = torch.randn(shape, device=device)
        out = torch.full_like(x, NAN)
        maps.affine(x, out, 2.0, 1.0)
        expect(out, x.double() * 2 + 1)
        wide = torch.randn((*shape[:-1], shape[-1] + 1), device=device)[..., 1:]
        maps.affine(wide, out, 2.0, 1.0)
        expect(out, wide.double() * 2 + 1)


@pytest.mark.gpu
def test_more_elements_than_32_bits_count(maps):
    total = 2**32 + 1000
    try:
        buffer = torch.zeros(total + 1, dtype=torch.float16, device="cuda")
    except torch.OutOfMemoryError:
        pytest.skip(f"no room for {2 * total} bytes")
    x = buffer[1:]  # one element at a time
    x[-1] = x[2**31] = x[2**32 + 5] = 2
    maps.affine(x, x, 3.0, 0.0)
    assert x[-1] == x[2**31] == x[2**32 + 5] == 6
    assert x.count_nonzero() == 3
    rows = x[: 2**32].view(-1, 2)[:, :1]  # 2^31 rows
    maps.affine(rows, rows, 1.0, 1.0)
    assert rows.min() >= 1
    assert rows.float().sum(dtype=torch.float64) == 2**31 + 6


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("which", "function", "low", "high"),
    [
        (0, torch.exp, -87.0, 88.0),
        (1, torch.log, 1e-30, 1e30),
        (2, torch.sqrt, 0.0, 1e30),
        (3, torch.tanh, -10.0, 10.0),
        (4, torch.erf, -5.0, 5.0),
        (5, torch.sin, -30.0, 30.0),
        (6, torch.cos, -30.0, 30.0),
        (7, torch.abs, -3.0, 3.0),
        (8, lambda x: torch.maximum(x, torch.full_like(x, 0.5)), -3.0, 3.0),
        (9, lambda x: torch.minimum(x, torch.full_like(x, 0.5)), -3.0, 3.0),
        (10, torch.rsqrt, 1e-30, 1e30),
    ],
)
def test_functions_are_within_two_ulp_and_right_at_the_ends(maps, device, which, function, low, high):
    x = torch.linspace(low, high, 200_003, device=device)
    out = torch.full_like(x, NAN)
    maps.function(x, out, which)
    torch.testing.assert_close(out.double(), function(x.double()), rtol=2 * 2**-23, atol=2**-24)
    ends = torch.tensor([NAN, float("inf"), -float("inf"), 0.0, -0.0, 1e38, -1e38, 1e-40], device=device)
    out = torch.full_like(ends, NAN)
    maps.function(ends, out, which)
    torch.testing.assert_close(out, function(ends.double()).float(), equal_nan=True, rtol=2**-22, atol=0)


def test_exp_reaches_zero_and_infinity(maps):
    x = torch.tensor([88.7, 88.8, 200.0, -103.9, -104.1, -88.0, -100.0])
    out = torch.full_like(x, NAN)
    maps.function(x, out, 0)
    torch.testing.assert_close(out, x.double().exp().float(), rtol=2**-22, atol=2**-148)
    assert out[1] == out[2] == float("inf")
    assert out[4] == 0


X = torch.zeros(4, 8)


def refused(name, call, error, text):
    return pytest.param(call, error, text, id=name)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        refused("rows", lambda m: m.affine(X, X[:3].clone(), 1, 1), TensorMatchError, "rows: expected 4 but got 3"),
        refused("columns", lambda m: m.affine(X, X[:, :7].clone(), 1, 1), TensorMatchError, "expected 8 but got 7"),
        refused("dtype", lambda m: m.affine(X.double(), X, 1, 1), TensorMatchError, "float8] but got float64"),
        refused("floats", lambda m: m.weighted(X.double(), X[0], X[0], X), TensorMatchError, "t16] but got float64"),
        refused("columns apart", lambda m: m.affine(X.T, X.T.clone(), 1, 1), TensorMatchError, "of 1, but got 8"),
        refused(
            "strides",
            lambda m: m.affine(X.view(2, 2, 8).transpose(0, 1), X, 1, 1),
            TensorMatchError,
            "expected all rows at one stride, 16, but got 8 for dimension 0",
        ),
        refused("scalar", lambda m: m.affine(torch.tensor(1.0), X, 1, 1), TensorMatchError, "at least 1 but got 0"),
        refused("shared", lambda m: m.weighted(X, X, X[0], X), TensorMatchError, "for weight, .*expected 1 but got 2"),
        refused(
            "types",
            lambda m: m.weighted(X, X[0].half(), X[0], X),
            TensorMatchError,
            "for weight, .*expected float32, the dtype of x, but got float16",
        ),
        refused("another row", lambda m: m.affine(X[:-1], X[1:], 1, 1), ValueError, "rows of out share memory"),
        refused("one row", lambda m: m.affine(X, X[:1].expand(4, 8), 1, 1), ValueError, "rows of out share memory"),
        refused("its weight", lambda m: m.weighted(X, X[0], X[1].clone(), X), ValueError, "other rows of weight"),
        refused("into", lambda m: m.into_one_row(X, X[0].clone()), TensorMatchError, "of rows: expected 4 but got 1"),
        refused("part", lambda m: m.third_half(X, X), TensorMatchError, "of 2 parts has parts 0 to 1, got part 2"),
        refused("outputs", lambda m: m.sum_and_product(X, X, X, X, X, X), ValueError, "rows of product share memory"),
    ],
)
def test_what_cannot_be_right_is_refused_by_name(maps, call, error, text):
    with pytest.raises(error, match=rf"(?s){text}"):
        call(maps)


def test_rows_in_reverse_are_read_and_are_not_taken_for_the_same_rows(maps):
    numpy = pytest.importorskip("numpy", reason="PyTorch has no negative strides")
    x = numpy.arange(12, dtype=numpy.float32).reshape(4, 3)
    out = numpy.full_like(x, NAN)
    maps.affine(x[::-1], out, 1.0, 0.0)
    assert (out == x[::-1]).all()
    with pytest.raises(ValueError, match="rows of out share memory with each other or with other rows of x"):
        maps.affine(x[::-1], x, 1.0, 0.0)


def test_an_element_off_its_alignment_is_refused(maps):
    x = torch.frombuffer(bytearray(41), dtype=torch.float32, offset=1, count=8)
    with pytest.raises(ValueError, match="x: its address is not a multiple of its element size, 4 bytes"):
        maps.affine(x, torch.empty(8), 1.0, 1.0)


@pytest.mark.slow
def test_a_functor_may_have_a_long_name(family):
    name = "n" + 300 * "a" + "me"
    functor = (toolbox.CSRC / "maps.h").read_text().replace("Affine", name)
    (family.csrc / "long.h").write_text(functor)
    source = (toolbox.CSRC / "maps.cpp").read_text().replace("Affine", name).replace("maps.h", "long.h")
    (family.csrc / "long.cpp").write_text(source)
    module = family.load_host("long", cpp_files=["long.cpp"], cpp_wrappers=[("affine", "affine")])
    out = torch.empty(4)
    module.affine(torch.arange(4.0), out, 2, 1)
    assert out.tolist() == [1, 3, 5, 7]


@pytest.mark.slow
def test_a_largest_value_is_that_of_float8_or_int8(family):
    """The scale of another type would be wrong, and nobody would see it."""
    functor = (toolbox.CSRC / "maps.h").read_text().replace("v * scale + shift", "v * largest", 1)
    functor = functor.replace(
        "return sgl::store(", "const float largest = row.largest_of(out);\n    return sgl::store(", 1
    )
    (family.csrc / "largest.h").write_text(functor.replace("[*this]", "[=]", 1))
    (family.csrc / "largest.cpp").write_text((toolbox.CSRC / "maps.cpp").read_text().replace("maps.h", "largest.h"))
    module = family.load_host("largest", cpp_files=["largest.cpp"], cpp_wrappers=[("affine", "affine")])
    out = torch.empty(8, dtype=torch.float8_e4m3fn)
    module.affine(torch.full((8,), 0.5), out, 0, 0)
    assert out.float().tolist() == [224] * 8
    with pytest.raises(CompileError, match=r"row\.largest_of: the operand must be float8 or int8"):
        module.affine(torch.ones(8), torch.empty(8), 0, 0)


def test_a_functor_without_a_name_does_not_compile(family):
    source = (toolbox.CSRC / "maps.cpp").read_text()
    source = source.replace("namespace {", "namespace {\nstruct Hidden : maps::Affine {};\n", 1)
    source = source.replace("host::RowProgram<maps::Affine>", "host::RowProgram<Hidden>")
    (family.csrc / "hidden.cpp").write_text(source)
    with pytest.raises(CompileError, match="must have a name: no lambda, no unnamed namespace"):
        family.load_host("hidden", cpp_files=["hidden.cpp"], cpp_wrappers=[("affine", "affine")])
