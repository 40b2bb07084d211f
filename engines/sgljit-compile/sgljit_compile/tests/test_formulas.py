"""Single ops that a user calls give way to their formulas, where the compiler can fuse these."""

from __future__ import annotations

import pytest
import torch

import sgljit_compile
from sgljit_compile import formulas, measured
from sgljit_compile.inductor import is_writing
from sgljit_norm import gemma_rmsnorm, rmsnorm

from .tiny import seen

EPS, SIZE = 1e-6, 64
REASON = "the compiler fuses its formula with what is around it"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def any_shape(monkeypatch):
    """The tests are about what is a formula; the last one is about where."""
    monkeypatch.setattr(formulas, "formula_is_faster", lambda op, shape, device: True)


def given(dtype=torch.float32, tokens=5):
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(tokens, SIZE, generator=generator), torch.rand(SIZE, generator=generator)
    x[0], x[1] = 0, 3e4
    return x.to(dtype), weight.to(dtype)


def exact(x, weight, plus_one=0):
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * (weight.double() + plus_one)


def stays(graph):
    return sum(map(is_writing, graph.graph.nodes))


def check(function, inputs, expected, op):
    """The op's formula is in the graph; the result is as exact as a value that is rounded once."""
    result, record, graph = seen(function, *inputs)
    assert stays(graph) == 0
    assert record.left[op, REASON] == 1
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2**-8, torch.float16: 2**-10}[inputs[0].dtype]
    torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", [rmsnorm, gemma_rmsnorm])
def test_a_norm_behind_generated_code(op, dtype):
    def call(x, weight):
        out = torch.full_like(x, torch.nan)
        op(x * 2, weight, out, EPS)
        return out

    x, weight = given(dtype)
    check(call, (x, weight), exact(x * 2, weight, op is gemma_rmsnorm), op.__name__)


def test_a_norm_before_generated_code_that_works_in_place():
    def call(x, weight, matrix):
        rows = x @ matrix
        rmsnorm(rows, weight, eps=EPS)
        return rows * 3

    (x, weight), matrix = given(), torch.eye(SIZE)
    check(call, (x, weight, matrix), 3 * exact(x, weight), "rmsnorm")


def test_an_input_that_an_op_overwrites_is_written():
    x, weight = given()
    expected = exact(x, weight)

    def call(x, weight):
        rmsnorm(x, weight, eps=EPS)
        return x + 1

    check(call, (x, weight), expected + 1, "rmsnorm")
    torch.testing.assert_close(x.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_activation(dtype, apart):
    silu_and_mul = pytest.importorskip("sgljit_activation").silu_and_mul

    def call(x, up):
        return (silu_and_mul(x, up=up) if apart else silu_and_mul(torch.cat((x, up), -1))) + 0

    x = torch.linspace(-100, 100, 5 * SIZE).view(5, SIZE).to(dtype)
    up = torch.full_like(x, 1.5)
    check(call, (x, up), torch.nn.functional.silu(x.double()) * 1.5, "silu_and_mul")


def test_an_activation_that_rounds_twice_stays():
    silu_and_mul = pytest.importorskip("sgljit_activation").silu_and_mul
    x, _ = given(torch.bfloat16)
    result, record, graph = seen(lambda x: silu_and_mul(x * 2, round_first=True) + 1, x)
    assert stays(graph) == 1
    assert not record.left
    gate, up = (2 * x).chunk(2, -1)
    assert torch.equal(result, torch.nn.functional.silu(gate) * up + 1)


def test_an_op_between_two_products_stays():
    def call(x, weight, matrix):
        rows = x @ matrix
        out = torch.empty_like(rows)
        rmsnorm(rows, weight, out, EPS)
        return out @ matrix

    (x, weight), matrix = given(), torch.eye(SIZE)
    result, record, graph = seen(call, x, weight, matrix)
    assert stays(graph) == 1
    assert not record.left
    torch.testing.assert_close(result.double(), exact(x, weight), rtol=1e-5, atol=1e-6)


def test_a_part_of_a_tensor_stays():
    def call(x, weight):
        out = torch.zeros(8, SIZE)
        rmsnorm(x * 2, weight, out[:5], EPS)
        return out

    x, weight = given()
    result, _, graph = seen(call, x, weight)
    assert stays(graph) == 1
    torch.testing.assert_close(result[:5].double(), exact(2 * x, weight), rtol=1e-5, atol=1e-6)
    assert torch.equal(result[5:], torch.zeros(3, SIZE))


@pytest.mark.parametrize(
    ("weight", "eps", "text"), [(torch.ones(SIZE + 1), EPS, "expected 64 but got 65"), (torch.ones(SIZE), -1.0, "eps")]
)
def test_an_error_is_the_ops(weight, eps, text):
    def call(x, weight):
        out = torch.empty_like(x)
        rmsnorm(x * 2, weight, out, eps)
        return out

    with pytest.raises(Exception, match=text):
        seen(call, given()[0], weight)


def test_behind_an_addition_it_is_a_part_of_the_chain():
    def call(x, residual, weight, matrix):
        total, out = x @ matrix + residual @ matrix, torch.empty_like(x)
        rmsnorm(total, weight, out, EPS)
        return out, total

    (x, weight), matrix = given(), torch.eye(SIZE)
    (result, total), record, _ = seen(call, x, 2 * x, weight, matrix)
    assert record.chains == {"add + norm": 1}
    torch.testing.assert_close(result.double(), exact(3 * x, weight), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(total, 3 * x)


@pytest.mark.slow
def test_inductor_makes_one_loop_of_it():
    def call(x, weight):
        out = torch.empty_like(x)
        rmsnorm(x * 2, weight, out, EPS)
        return out + 1

    x, weight = given()
    torch.compiler.reset()
    with torch.no_grad():
        compiled = torch.compile(call, backend="sgljit", options={"chains": "on", "force_disable_caches": True})
        torch.testing.assert_close(compiled(x, weight).double(), exact(2 * x, weight) + 1, rtol=1e-5, atol=1e-5)
    assert f"1 x rmsnorm left: {REASON}" in str(sgljit_compile.explain()[-1])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("size", "dtype"), [(1024, torch.bfloat16), (256, torch.bfloat16), (1024, torch.float32)])
def test_the_table_decides(size, dtype, device, monkeypatch):
    if device == "cuda" and not torch.cuda.is_available():  # outside of the checkout nobody else asks
        pytest.skip("no CUDA device")
    monkeypatch.setattr(formulas, "formula_is_faster", measured.formula_is_faster)

    def call(x, weight):
        out = torch.full_like(x, torch.nan)
        rmsnorm(x * 2, weight, out, EPS)
        return out

    x, weight = torch.randn(5, size, device=device, dtype=dtype), torch.rand(size, device=device, dtype=dtype)
    result, _, graph = seen(call, x, weight)
    gives_way = (size, dtype) == (1024, torch.bfloat16) and measured.is_measured(x.device)
    assert stays(graph) == (not gives_way)
    torch.testing.assert_close(result.double(), exact(x * 2, weight), rtol=2**-8, atol=1e-6)
