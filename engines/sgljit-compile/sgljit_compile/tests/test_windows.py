"""A full sliding window: what is put on an op, and what is not."""

from __future__ import annotations

import pytest
import torch

import sgljit_compile

BATCH, HEADS, WINDOW, SIZE = 2, 3, 6, 8
PART = "sliding window"


def rolled(cache, heads, by=-1, place=-1):
    """As transformers' StaticSlidingWindowLayer stores a token."""
    new = cache.roll(by, dims=-2)
    new[:, :, torch.tensor([place], device=cache.device)] = heads
    cache.copy_(new)
    return cache


class Layers:
    """In each layer heads go to two caches, which are read then."""

    def __init__(self, layers=1, store=rolled):
        self.layers, self.store = layers, store

    def __call__(self, x, matrix, *caches):
        results = []
        for i in range(self.layers):
            heads = (x @ matrix).view(x.shape[0], 1, HEADS, SIZE).transpose(1, 2)
            for cache, new in zip(caches[2 * i : 2 * i + 2], (heads, heads * 2), strict=True):
                x = x + self.store(cache, new).sum() / 1000
        return (x, *results)


def inputs(layers=1, dtype=torch.float32, shapes=((BATCH, HEADS, WINDOW, SIZE),)):
    generator = torch.Generator().manual_seed(2)
    x, matrix = (torch.randn(size, generator=generator).to(dtype) for size in ((BATCH, 16), (16, HEADS * SIZE)))
    shapes = [*shapes, *[shapes[-1]] * (2 * layers - len(shapes))]
    return [x, matrix, *(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)]


def check(function, tensors, chains, ops="on", tolerance=1e-5):
    """Results and caches against those without a compiler; inductor's own passes make the form that is looked for."""
    reference = [tensor.clone() for tensor in tensors]
    torch.compiler.reset()
    options = {"chains": ops, "force_disable_caches": True}
    with torch.no_grad():
        expected = function(*reference)
        result = torch.compile(function, backend="sgljit", fullgraph=True, options=options)(*tensors)
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(tensors, reference, rtol=tolerance, atol=tolerance)
    record = sgljit_compile.explain()[-1]
    assert record.chains == ({PART: chains} if chains else {})
    return record


@pytest.mark.parametrize("layers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_token_goes_into_the_windows_of_keys_and_values_in_one_launch(layers):
    check(Layers(layers), inputs(layers), layers)


@pytest.mark.slow
def test_half_precision():
    check(Layers(), inputs(dtype=torch.bfloat16), 1, tolerance=3e-2)


@pytest.mark.slow
def test_one_sequence():
    """Its heads have no dimension for the batch there."""
    tensors = inputs(shapes=((1, HEADS, WINDOW, SIZE),))
    tensors[0] = tensors[0][:1]
    check(Layers(), tensors, 1)


@pytest.mark.slow
def test_the_last_place_may_be_named_by_its_number():
    check(Layers(store=lambda cache, heads: rolled(cache, heads, place=WINDOW - 1)), inputs(), 1)


@pytest.mark.slow
@pytest.mark.parametrize(("by", "place"), [(1, -1), (-2, -1), (-1, 0), (-1, WINDOW - 2)])
def test_another_roll_or_place_stays(by, place):
    check(Layers(store=lambda cache, heads: rolled(cache, heads, by, place)), inputs(), 0)


@pytest.mark.slow
def test_a_cache_that_is_read_before_stays():
    """The values of before would have to be copied."""

    def store(cache, heads):
        before = cache[:, :, 0] * 2
        return rolled(cache, heads) + before[:, :, None]

    check(Layers(store=store), inputs(), 0)


@pytest.mark.slow
def test_layers_behind_one_that_stays_have_their_own_keys_and_values():
    calls = []

    def store(cache, heads):
        calls.append(cache)
        before = cache[:, :, 0] * 2 if len(calls) in (2, 8) else 0  # of the first layer, without a compiler and with it
        return rolled(cache, heads) + (before[:, :, None] if len(calls) in (2, 8) else 0)

    check(Layers(3, store), inputs(3), 2)


@pytest.mark.parametrize("result", [lambda new: new, pytest.param(lambda new: new[:, :, 0], marks=pytest.mark.slow)])
def test_a_window_that_is_a_result_stays(result):
    """It would be the cache itself, which the next call writes."""

    def call(x, matrix, *caches):
        heads = (x @ matrix).view(BATCH, 1, HEADS, SIZE).transpose(1, 2)
        results = []
        for cache, token in zip(caches, (heads, heads * 2), strict=True):
            new = cache.roll(-1, dims=-2)
            new[:, :, torch.tensor([-1])] = token
            cache.copy_(new)
            results.append(result(new))
        return tuple(results)

    record = check(call, inputs(), 0)
    assert record.left == {(PART, "it is a result of the graph, too, which must not be the cache itself"): 1}


@pytest.mark.slow
def test_a_cache_that_is_no_input_stays():
    check(Layers(store=lambda cache, heads: rolled(cache * 2, heads)), inputs(), 0)


@pytest.mark.slow
def test_a_part_of_a_cache_stays():
    def store(cache, heads):
        rolled(cache[:, :, :WINDOW], heads)
        return cache

    check(Layers(store=store), inputs(shapes=((BATCH, HEADS, WINDOW + 1, SIZE),)), 0)


@pytest.mark.slow
def test_windows_of_two_sizes_stay():
    class Two(Layers):
        def __call__(self, x, matrix, *caches):
            heads = (x @ matrix).view(BATCH, 1, HEADS, SIZE).transpose(1, 2)
            return rolled(caches[0], heads).sum(), rolled(caches[1], heads * 2).sum()

    check(Two(), inputs(shapes=((BATCH, HEADS, WINDOW, SIZE), (BATCH, HEADS, WINDOW + 1, SIZE))), 0)


@pytest.mark.slow
def test_what_reads_the_first_window_waits_for_the_second_token():
    """The heads of v may need no cache, and come last."""

    def call(x, matrix, keys, values):
        heads = (x @ matrix).view(BATCH, 1, HEADS, SIZE).transpose(1, 2)
        early = rolled(keys, heads).sum(-2)
        late = rolled(values, (x.tanh() @ matrix).view(BATCH, 1, HEADS, SIZE).transpose(1, 2))
        return early * 2, late.sum()

    check(call, inputs(), 1)


@pytest.mark.slow
def test_values_that_need_the_window_of_keys_stay():
    def call(x, matrix, keys, values):
        heads = (x @ matrix).view(BATCH, 1, HEADS, SIZE).transpose(1, 2)
        attended = rolled(keys, heads).sum(-2, keepdim=True)
        return rolled(values, heads * attended).sum()

    record = check(call, inputs(), 0)
    assert record.left == {(PART, "keys and values are not side by side"): 2}


@pytest.mark.slow
def test_what_is_switched_off_stays():
    record = check(Layers(), inputs(), 0, ops="-append_to_window")
    assert record.left == {(PART, "switched off"): 1}
