"""The addition of a residual and a norm: what is put on an op, and what is not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .tiny import seen

HIDDEN = 64
LEFT = "no addition is right before it"


class Norm(nn.Module):
    """Llama's norm, or with ``plus_one`` Gemma's; subclasses change a part of it."""

    plus_one = False

    def __init__(self, dtype=torch.float32, weight_dtype=None):
        super().__init__()
        weight = torch.empty(HIDDEN).uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(3))
        self.weight = nn.Parameter(weight.to(weight_dtype or dtype), requires_grad=False)

    def root(self, wide):
        return torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)

    def forward(self, x):
        wide = x.to(torch.float32)
        normed = wide * self.root(wide)
        if self.plus_one:
            return (normed * (1.0 + self.weight.float())).type_as(x)
        return self.weight * normed.to(x.dtype)


def block(norm, use=lambda normed, total: (normed, total)):
    """A product, the addition, the norm, as between attention and MLP."""

    def call(x, residual, matrix, other):
        total = residual @ other + x @ matrix
        return use(norm(total), total)

    return call


def inputs(dtype=torch.float32, batch=2):
    generator = torch.Generator().manual_seed(0)
    shape = [(batch, 3, HIDDEN), (batch, 3, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, HIDDEN)]
    return [torch.randn(size, generator=generator).to(dtype) / 4 for size in shape]


def check(function, given, part, dtype=torch.float32):
    result, record, _ = seen(function, *given)
    with torch.no_grad():
        expected = function(*given)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)
    assert record.chains == ({part: 1} if part else {})
    return record


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("plus_one", [False, True])
def test_both_forms_are_put_on_an_op(dtype, plus_one):
    norm = Norm(dtype)
    norm.plus_one = plus_one
    check(block(norm), inputs(dtype), "add + norm" + " with 1 + weight" * plus_one, dtype)


def test_other_ways_of_writing_the_same():
    class Squared(Norm):
        def root(self, wide):
            return torch.pow((wide * wide).mean(wide.dim() - 1, keepdim=True) + 1e-6, -0.5)

    check(block(Squared()), inputs(), "add + norm")
    check(block(nn.RMSNorm(HIDDEN, eps=1e-6)), inputs(), "add + norm")


class EpsOutside(Norm):
    def root(self, wide):
        return 1 / (wide.pow(2).mean(-1, keepdim=True).sqrt() + 1e-6)


class Cubed(Norm):
    def root(self, wide):
        return torch.rsqrt(wide.pow(3).abs().mean(-1, keepdim=True) + 1e-6)


class PowerOfThree(Norm):
    def root(self, wide):
        return torch.rsqrt(wide.pow(3).mean(-1, keepdim=True) + 1e3)


class OtherDimension(Norm):
    def root(self, wide):
        return torch.rsqrt(wide.pow(2).mean(1, keepdim=True) + 1e-6)


class OfAnother(Norm):
    def forward(self, x):
        return self.weight * (x * self.root(x + 1))


class Summed(Norm):
    def root(self, wide):
        return torch.rsqrt(wide.pow(2).sum(-1, keepdim=True) + 1e-6)


class TwoPlusWeight(Norm):
    def forward(self, x):
        return x * self.root(x) * (2.0 + self.weight)


class RowWeight(Norm):
    def forward(self, x):
        return x * self.root(x) * self.weight[None, :3, None]


class InHalf(Norm):
    def forward(self, x):
        return self.weight * (x * self.root(x))


@pytest.mark.parametrize(
    "norm", [EpsOutside, Cubed, PowerOfThree, OtherDimension, OfAnother, Summed, TwoPlusWeight, RowWeight]
)
def test_another_formula_stays(norm):
    record = check(block(norm()), inputs(), "")
    assert not record.left


def test_another_dtype_stays():
    check(block(Norm(weight_dtype=torch.float64)), inputs(), "")
    check(block(Norm(torch.bfloat16, weight_dtype=torch.float32)), inputs(torch.bfloat16), "", torch.bfloat16)
    check(block(InHalf(torch.bfloat16)), inputs(torch.bfloat16), "", torch.bfloat16)
    check(block(Norm(torch.float64)), [x.double() for x in inputs()], "")


def test_a_sum_that_is_used_in_float32_stays():
    norm = Norm(torch.bfloat16)

    def call(x, residual, matrix, other):
        total = residual @ other + x @ matrix
        wide = total.to(torch.float32)
        normed = norm.weight * (wide * norm.root(wide)).to(total.dtype)
        return normed, wide * 2

    record = check(call, inputs(torch.bfloat16), "", torch.bfloat16)
    assert record.left == {("add + norm", "something takes a value inside of it, such as the sum in float32"): 1}


def test_the_sum_may_be_used_elsewhere():
    check(block(Norm(), use=lambda normed, total: (normed * 2, total - 1, total.sum())), inputs(), "add + norm")


def test_an_addend_that_is_needed_later_stays():
    norm = Norm()

    def call(x, residual, matrix, other):
        first = residual @ other
        total = first + x @ matrix
        return norm(total), total, first * 2

    record = check(call, inputs(), "")
    assert record.left == {("add + norm", "an addend is needed later, which an op in place would have to copy"): 1}


def test_an_addend_that_is_needed_before_may_be_overwritten():
    norm = Norm()

    def call(x, residual, matrix, other):
        first = residual @ other
        total = first + norm(first) @ matrix
        return norm(total), total

    check(call, inputs(), "add + norm")


def test_an_input_of_the_graph_is_not_overwritten():
    norm = Norm()

    def call(x, residual, matrix, _other):
        total = residual + x @ matrix
        return norm(total), total

    record = check(call, inputs(), "")
    assert record.left == {
        ("add + norm", "an addend is an input of the graph, which an op in place would have to copy"): 1
    }


def test_views_of_one_tensor_stay():
    norm = Norm()

    def call(x, residual, matrix, other):
        both = x @ torch.cat((matrix, other), -1)
        first, second = both.split(HIDDEN, -1)
        total = first + second
        return norm(total), total

    check(call, inputs(), "")


def test_parts_of_one_tensor_stay():
    norm = Norm()

    def call(x, _residual, matrix, _other):
        both = x @ matrix
        total = both[:1] + both[1:]
        return norm(total), total

    record = check(call, inputs(), "")
    assert record.left == {("add + norm", "its addends share memory"): 1}


def test_an_addend_with_an_offset_stays():
    norm = Norm()

    def call(x, residual, matrix, other):
        total = (residual @ other)[1:] + (x @ matrix)[1:]
        return norm(total), total

    record = check(call, inputs(), "")
    assert record.left == {("add + norm", "its addends are not contiguous, or a part of something"): 1}


def test_a_part_of_a_concatenation_stays():
    norm = Norm()

    def call(x, residual, matrix, other):
        first = residual @ other
        joined = torch.cat((first, x), -1)
        total = first + joined @ torch.cat((matrix, other))
        return norm(total), total, joined

    record = check(call, inputs(), "")
    assert record.left == {("add + norm", "an addend is a part of a concatenation"): 1}


def test_what_the_compiler_fuses_with_the_addition_stays():
    norm = Norm()

    def call(x, residual, matrix, other):
        total = residual @ other + torch.tanh(x @ matrix)
        return norm(total), total

    record = check(call, inputs(), "")
    assert record.left == {("add + norm", "an addend is computed by code that the compiler fuses with the addition"): 1}


def test_a_scaled_addition_stays():
    norm = Norm()

    def call(x, residual, matrix, other):
        total = torch.add(residual @ other, x @ matrix, alpha=2)
        return norm(total), total

    check(call, inputs(), "")


def test_of_two_norms_of_one_sum_one_stays():
    first, second = Norm(), Norm()
    second.weight.data *= 2

    def call(x, residual, matrix, other):
        total = residual @ other + x @ matrix
        return first(total), second(total), total

    record = check(call, inputs(), "add + norm")
    assert record.left == {("norm", "its sum is on an op already, with another norm"): 1}


def test_a_norm_alone_stays():
    norm = Norm()
    record = check(lambda x, residual, matrix, other: norm(x @ matrix), inputs(), "")
    assert record.left == {("norm", LEFT): 1}


def test_addends_that_broadcast_stay():
    norm = Norm()

    def call(x, residual, matrix, other):
        total = (residual @ other)[:1] + x @ matrix
        return norm(total), total

    check(call, inputs(), "")


def sandwich(first, second, use=lambda normed, total, inner: (normed, total)):
    """A product, its norm, the addition and the norm of the sum, as Gemma 3 has it."""

    def call(x, residual, matrix, other):
        inner = first(x @ matrix)
        total = residual @ other + inner
        return use(second(total), total, inner)

    return call


def two_norms(plus_one=False, dtype=torch.float32):
    first, second = Norm(dtype), Norm(dtype)
    first.weight.data *= 3
    first.plus_one = second.plus_one = plus_one
    return first, second


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("plus_one", [False, True])
def test_a_norm_before_the_addition_is_a_part_of_it(dtype, plus_one):
    part = "norm + add + norm" + " with 1 + weight" * plus_one
    record = check(sandwich(*two_norms(plus_one, dtype)), inputs(dtype), part, dtype)
    assert not record.left


@pytest.mark.slow
def test_a_chain_of_layers_with_two_norms_each():
    (one, two), (three, four) = two_norms(), two_norms()

    def call(x, residual, matrix, other):
        total = residual @ other + one(x @ matrix)
        total = total + three(two(total) @ matrix)
        return four(total), total

    result, record, _ = seen(call, *inputs())
    with torch.no_grad():
        torch.testing.assert_close(result, call(*inputs()), rtol=1e-5, atol=1e-5)
    assert record.chains == {"norm + add + norm": 2}
    assert not record.left


def different_eps(first, second):
    second.root = lambda wide: torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)


def different_weights(first, second):
    second.plus_one = True


FUSES = "an addend is computed by code that the compiler fuses with the addition"


@pytest.mark.parametrize("change", [different_eps, different_weights])
def test_two_norms_of_different_kinds_stay(change):
    first, second = two_norms()
    change(first, second)
    record = check(sandwich(first, second), inputs(), "")
    assert record.left == {("norm", LEFT): 1, ("add + norm" + " with 1 + weight" * second.plus_one, FUSES): 1}


def test_a_norm_with_an_eps_that_is_an_input_stays_and_the_record_says_so():
    def call(x, residual, weight, eps):
        total = x + residual
        return torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + eps) * total * weight, total

    eps = torch.tensor(1e-6, dtype=torch.float64)  # as torch.compile has it
    _, record, _ = seen(call, torch.randn(2, HIDDEN), torch.randn(2, HIDDEN), torch.ones(HIDDEN), eps)
    ((part, reason),) = record.left
    assert (part, reason[:22]) == ("norm", "its eps is an input, a")


def test_a_norm_that_is_used_elsewhere_too_stays():
    record = check(sandwich(*two_norms(), use=lambda normed, total, inner: (normed, total, inner)), inputs(), "")
    later = "an addend is needed later, which an op in place would have to copy"
    assert record.left == {("norm", LEFT): 1, ("add + norm", later): 1}


def test_a_product_that_is_needed_after_its_norm_stays():
    first, second = two_norms()

    def call(x, residual, matrix, other):
        product = x @ matrix
        total = residual @ other + first(product)
        return second(total), total, product

    record = check(call, inputs(), "")
    later = "an addend is needed later, which an op in place would have to copy"
    assert record.left == {("norm", LEFT): 1, ("norm + add + norm", later): 1}


@pytest.mark.slow
def test_what_the_compiler_fuses_with_the_first_norm_stays():
    first, second = two_norms()

    def call(x, residual, matrix, other):
        total = first(torch.tanh(x @ matrix)) + residual @ other
        return second(total), total

    record = check(call, inputs(), "")
    assert record.left == {("norm", LEFT): 1, ("norm + add + norm", FUSES): 1}


@pytest.mark.slow
def test_a_norm_of_a_sum_before_the_addition_is_an_op_of_its_own():
    first, second = two_norms()

    def call(x, residual, matrix, other):
        inner = first(x @ matrix + residual @ matrix)
        total = inner + residual @ other
        return second(total), total

    result, record, _ = seen(call, *inputs())
    with torch.no_grad():
        torch.testing.assert_close(result, call(*inputs()), rtol=1e-5, atol=1e-5)
    assert record.chains == {"add + norm": 2}


def test_a_first_norm_of_what_another_chain_gives_stays():
    one, two, three = Norm(), *two_norms()

    def call(x, residual, matrix, other):
        normed = one(residual @ other + x @ matrix)
        total = residual @ matrix + two(normed)
        return three(total), total

    result, record, _ = seen(call, *inputs())
    with torch.no_grad():
        torch.testing.assert_close(result, call(*inputs()), rtol=1e-5, atol=1e-5)
    assert record.chains == {"add + norm": 1}
    assert record.left == {("norm", LEFT): 1, ("norm + add + norm", "its inputs are results of another chain"): 1}


@pytest.mark.parametrize("of_residual", [False, True])
def test_a_weight_that_is_a_part_of_an_addend_stays(of_residual):
    first, second = two_norms()

    def call(x, residual, matrix, other):
        product, added = x @ matrix, residual @ other
        del first.weight
        first.weight = (added if of_residual else product)[0, 1]
        total = first(product) + added
        return second(total), total

    record = check(call, inputs(), "")
    assert record.left == {("norm", LEFT): 1, ("norm + add + norm", "a weight shares memory with an addend"): 1}


def test_sizes_that_change():
    given = inputs()
    for tensor in given[:2]:
        torch._dynamo.mark_dynamic(tensor, 0)
    result, record, graph = seen(block(Norm()), *given)
    assert record.chains == {"add + norm": 1}
    assert any("sym_size" in str(node.target) for node in graph.graph.nodes)
    torch.testing.assert_close(result, block(Norm())(*given), rtol=1e-5, atol=1e-5)
