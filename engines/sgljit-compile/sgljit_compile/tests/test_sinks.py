"""Attention with sinks: what runs on a kernel of attention, and what stays."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import sgljit_compile

from .tiny import EVERYWHERE, mostly_slow, seen

PART = "attention with sinks"
TAKEN = "something takes a value inside of it, such as the scores"
HEADS, KV_HEADS, SIZE, LENGTH = 6, 2, 16, 24
SEVERAL = "its mask has another shape, or is for several tokens"
aten = torch.ops.aten


class Attention(nn.Module):
    """gpt-oss's attention. Its parts are methods and attributes, which subclasses and tests replace."""

    scale = 0.3

    def repeat(self, x):
        batch, heads, length, size = x.shape
        each = HEADS // heads
        return x[:, :, None].expand(batch, heads, each, length, size).reshape(batch, heads * each, length, size)

    def scores(self, q, keys):
        return torch.matmul(q, keys.transpose(2, 3)) * self.scale

    def masked(self, scores, mask):
        return scores if mask is None else scores + mask

    def columns(self, scores, sinks):
        both = torch.cat([scores, sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], -1)], dim=-1)
        return both - both.max(dim=-1, keepdim=True).values

    def shares(self, columns):
        return columns.softmax(dim=-1, dtype=columns.dtype)[..., :-1]

    def forward(self, q, keys, values, sinks, mask=None):
        scores = self.masked(self.scores(q * 1, self.repeat(keys)), mask)
        shares = self.shares(self.columns(scores, sinks))
        return torch.matmul(shares, self.repeat(values)).transpose(1, 2) * 1


def given(batch=2, tokens=1, dtype=torch.float32, device="cpu", length=LENGTH, size=SIZE):
    generator = torch.Generator().manual_seed(0)
    shapes = ((batch, HEADS, tokens, size), *[(batch, KV_HEADS, length, size)] * 2, (HEADS,))
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


def mask_of(*outer, tokens=1, dtype=torch.float32, device="cpu", length=LENGTH):
    keep = torch.rand(*outer, tokens, length, generator=torch.Generator().manual_seed(1)) < 0.6
    return torch.where(keep, 0.0, torch.finfo(dtype).min).to(device, dtype)


def check(module, inputs, part=PART, **options):
    with torch.no_grad():
        expected = module(*inputs)
        exact = module(*(x if x is None else x.double() for x in inputs))
    result, record, graph = seen(module, *inputs, **options)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 3e-3}.get(result.dtype, 1e-5)
    torch.testing.assert_close(result.double(), exact, rtol=tolerance, atol=tolerance)
    assert record.chains.get(PART, 0) == (part == PART)
    assert (aten.exp.default in {node.target for node in graph.graph.nodes}) == (part != PART)
    return record, graph


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mask", [None, (1, 1), (2, 1), (2, HEADS)])
def test_one_token(mask, dtype):
    added = None if mask is None else mask_of(*mask, dtype=dtype)
    check(Attention(), [*given(dtype=dtype), added])


@pytest.mark.parametrize("sinks", [-40.0, 0.0, 40.0])
def test_sinks_of_any_size(sinks):
    """From one that changes nothing to one that takes all."""
    q, keys, values, own = given()
    check(Attention(), [q, keys, values, own + sinks, mask_of(1, 1)])


def test_several_tokens_without_a_mask():
    check(Attention(), given(tokens=5))


def test_several_tokens_with_a_mask_stay_on_the_cpu():
    record, _ = check(Attention(), [*given(tokens=5), mask_of(1, 1, tokens=5)], None)
    assert record.left[PART, SEVERAL] == 1


@pytest.mark.parametrize("least", [torch.finfo(torch.float32).min, float("-inf")])
def test_a_row_that_keeps_no_key_is_zero(least):
    mask = torch.full((2, 1, 1, LENGTH), least)
    mask[1] = 0
    result, record, _ = seen(Attention(), *given(), mask)
    assert record.chains == {PART: 1}
    assert (result[0] == 0).all()
    assert (result[1] != 0).all()


def test_no_number_among_the_keys_stays_in_its_heads():
    q, keys, values, sinks = given()
    keys[0, 1, 3, 0] = float("nan")
    expected = Attention()(q, keys, values, sinks)
    result, record, _ = seen(Attention(), q, keys, values, sinks)
    assert record.chains == {PART: 1}
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert result.isnan().any()


class NotShifted(Attention):
    def columns(self, scores, sinks):
        return torch.cat([scores, sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], -1)], dim=3)


class ShiftedByAmax(Attention):
    def columns(self, scores, sinks):
        both = NotShifted.columns(self, scores, sinks)
        return both - both.amax(dim=-1, keepdim=True)


class NotScaled(Attention):
    def scores(self, q, keys):
        return torch.matmul(q, keys.transpose(2, 3))


class MaskFirst(Attention):
    def masked(self, scores, mask):
        return mask + scores


@pytest.mark.parametrize("form", mostly_slow(NotShifted, ShiftedByAmax, NotScaled, MaskFirst))
def test_other_ways_to_write_it(form):
    check(form(), [*given(), mask_of(1, 1)])


def test_sinks_may_differ_by_token():
    class Own(Attention):
        def columns(self, scores, sinks):
            return torch.cat([scores, sinks], -1)

    q, keys, values, _ = given(tokens=3)
    check(Own(), [q, keys, values, torch.randn(2, HEADS, 3, 1)])


class TwoSinks(Attention):
    def columns(self, scores, sinks):
        one = sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], -1)
        return torch.cat([scores, one, one], -1)

    def shares(self, columns):
        return columns.softmax(-1)[..., :-2]


class SinkFirst(Attention):
    def columns(self, scores, sinks):
        one = sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], -1)
        return torch.cat([one, scores], -1)

    def shares(self, columns):
        return columns.softmax(-1)[..., 1:]


class WrongPart(Attention):
    def shares(self, columns):
        return columns.softmax(-1)[..., 1:]


class OfHeads(Attention):
    """Over another dimension."""

    def shares(self, columns):
        return columns.softmax(1)[..., :-1]


class OfOthers(Attention):
    """Less the largest value of another tensor."""

    def columns(self, scores, sinks):
        both = NotShifted.columns(self, scores, sinks)
        return both - (both * both).amax(dim=2, keepdim=True)


class ScaledByTensor(Attention):
    def scores(self, q, keys):
        return torch.matmul(q, keys.transpose(2, 3)) * (1 + q.amax())


class Powers(Attention):
    def shares(self, columns):
        powers = columns.exp()
        return (powers / powers.sum(-1, keepdim=True))[..., :-1]


class Capped(Attention):
    """Scores that are bounded, as Gemma 2's."""

    def scores(self, q, keys):
        return torch.matmul(q, keys.transpose(2, 3)).tanh()


class Whole(Attention):
    """Heads are repeated as a whole, not one by one."""

    def repeat(self, x):
        return (
            x[:, :, None].expand(*x.shape[:2], 3, *x.shape[2:]).transpose(1, 2).reshape(x.shape[0], HEADS, *x.shape[2:])
        )


@pytest.mark.parametrize(
    "form", mostly_slow(TwoSinks, SinkFirst, WrongPart, OfHeads, OfOthers, ScaledByTensor, Powers, Capped, Whole)
)
def test_another_computation_stays(form):
    record, _ = check(form(), [*given(), mask_of(1, 1)], None)
    assert not {part for part, _ in record.left if part == PART}


class Reshaped(Attention):
    """Scores with other heads than the cache: a mask is for these."""

    shape = (2 * HEADS, 1)

    def columns(self, scores, sinks):
        return torch.cat([scores, scores.new_zeros(*scores.shape[:3], 1)], -1)

    def forward(self, q, keys, values, sinks, mask=None):
        scores = torch.matmul(q * 1, self.repeat(keys).transpose(2, 3))
        viewed = self.masked(scores.reshape(*self.shape, *scores.shape[2:]) * self.scale, mask)
        shares = self.shares(self.columns(viewed, sinks)).reshape(scores.shape)
        return torch.matmul(shares, self.repeat(values)).transpose(1, 2) * 1


@pytest.mark.parametrize("shape", mostly_slow((12, 1), (6, 2), (3, 4), (1, 12)))
def test_scores_in_another_shape_stay(shape):
    module = Reshaped()
    module.shape = shape
    for mask in (None, mask_of(1, shape[1])):
        record, _ = check(module, [*given(), mask], None)
        assert not record.left


class Two(nn.Module):
    """Two attentions with one mask: of one with sinks and one without either may be first."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, q, keys, values, sinks, mask, others):
        return self.first(q, keys, others, sinks, mask), self.second(q, keys, values, sinks, mask)


class Plain(Attention):
    def forward(self, q, keys, values, sinks, mask=None):
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q * 1, self.repeat(keys), self.repeat(values), mask).transpose(1, 2) * 1


@pytest.mark.parametrize(("first", "second"), [(Plain, Attention), (Attention, Plain), (Attention, Attention)])
@pytest.mark.parametrize("size", mostly_slow(SIZE, 2 * SIZE))
def test_two_attentions_share_a_mask(first, second, size):
    """Where values are larger than keys, no kernel on the CPU takes them."""
    module = Two(first(), second())
    inputs = [*given(), mask_of(1, 1), given(size=size)[2]]
    with torch.no_grad():
        expected = module(*inputs)
    result, record, _ = seen(module, *inputs)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
    both = [(first, size), (second, SIZE)]
    assert record.chains.get(PART, 0) == sum(one is Attention and of == SIZE for one, of in both)


@pytest.mark.parametrize("inner", ["scores", "shares"])
def test_values_that_are_used_elsewhere_stay(inner):
    class Taken(Attention):
        def forward(self, q, keys, values, sinks, mask=None):
            scores = self.masked(self.scores(q * 1, self.repeat(keys)), mask)
            shares = self.shares(self.columns(scores, sinks))
            out = torch.matmul(shares, self.repeat(values)).transpose(1, 2)
            return out + {"scores": scores, "shares": shares}[inner].amax()

    record, _ = check(Taken(), [*given(), mask_of(1, 1)], None)
    assert record.left[PART, TAKEN] == 1


@pytest.mark.slow
def test_a_length_that_changes_stays():
    inputs = given()
    for x in inputs[1:3]:
        torch._dynamo.mark_dynamic(x, 2)
    check(Attention(), inputs, None)


def test_it_goes_with_the_chains_of_heads():
    ops = {op: devices for op, devices in EVERYWHERE.items() if "rope" not in op}
    record, _ = check(Attention(), [*given(), mask_of(1, 1)], None, ops=ops)
    assert not record.left


@pytest.mark.slow
def test_compiled():
    torch.compiler.reset()
    call = torch.compile(Attention(), backend="sgljit", options={"chains": "rope", "force_disable_caches": True})
    inputs = [*given(), mask_of(2, 1)]
    with torch.no_grad():
        torch.testing.assert_close(call(*inputs), Attention()(*inputs), rtol=1e-5, atol=1e-5)
    assert sgljit_compile.explain()[-1].chains == {PART: 1}


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize("mask", [None, (1, 1), (2, 1)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_on_a_gpu(tokens, mask, dtype):
    if not torch.cuda.is_available():  # outside of the checkout nobody else asks
        pytest.skip("no CUDA device")
    options = {"dtype": dtype, "device": "cuda", "length": 32}
    added = None if mask is None else mask_of(*mask, tokens=tokens, **options)
    inputs = [*given(tokens=tokens, size=64, **options), added]
    by_cudnn = dtype != torch.float32
    check(Attention(), inputs, PART if by_cudnn or tokens == 1 or mask is None else None)
    if not by_cudnn:
        return
    torch.compiler.reset()
    call = torch.compile(Attention(), backend="sgljit", options={"chains": "rope", "force_disable_caches": True})
    with torch.no_grad():
        exact = Attention()(*(x if x is None else x.double() for x in inputs))
        torch.testing.assert_close(call(*inputs).double(), exact, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("least", [torch.finfo(torch.bfloat16).min, float("-inf")])
def test_a_row_that_keeps_no_key_is_zero_on_a_gpu(least):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    options = {"dtype": torch.bfloat16, "device": "cuda", "length": 32}
    mask = torch.full((2, 1, 1, 32), least, dtype=torch.bfloat16, device="cuda")
    mask[1] = 0
    result, record, _ = seen(Attention(), *given(size=64, **options), mask)
    assert record.chains == {PART: 1}
    assert (result[0] == 0).all()
    assert (result[1] != 0).all()
