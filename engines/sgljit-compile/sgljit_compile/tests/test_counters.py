"""The places of tokens in the caches of all layers: what becomes one tensor, and what stays."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .test_heads import KV_HEADS, LENGTH, SIZE, Prologue, given
from .tiny import EVERYWHERE, mostly_slow, seen


def behind(x, start):
    """The places of the tokens of ``x`` in a cache that has ``start`` tokens."""
    return torch.arange(x.shape[1], device=x.device) + start


class Layers(nn.Module):
    """Layers with caches and counters of their own, as a static cache of transformers has them.

    ``steps`` and ``places`` have a number and a function for each layer, which a test replaces. ``assigned`` says that
    an assignment writes the caches, which takes negative places and any integers.
    """

    def __init__(self, layers=3, assigned=False):
        super().__init__()
        self.assigned = assigned
        self.layers = nn.ModuleList(Prologue() for _ in range(layers))
        self.steps = [1] * layers
        self.places = [behind] * layers

    def forward(self, x, positions, *states):
        results = []
        for i, layer in enumerate(self.layers):
            keys, values, start = states[3 * i : 3 * i + 3]
            q, k, v = layer.parts(x, positions)
            places = self.places[i](x, start)
            start.add_(self.steps[i])
            for cache, heads in ((keys, k), (values, v)):
                if self.assigned:
                    cache[:, :, places] = heads
                else:
                    cache.index_copy_(2, places, heads)
            results += [q * 1, keys.sum(), values * 2]
            x = x + v.transpose(1, 2).flatten(2) @ layer.v_proj.T
        return (x, *results)


def inputs(starts=(5, 0, 31), batch=2, tokens=1, shape=()):
    x, positions, *_ = given(batch=batch, tokens=tokens)
    generator = torch.Generator().manual_seed(9)
    states = []
    for start in starts:
        states += [torch.randn(batch, KV_HEADS, LENGTH, SIZE, generator=generator) for _ in "kv"]
        states.append(torch.full(shape, start))
    return [x, positions, *states]


def check(module, tensors):
    """The nodes of the graph, after a comparison of its results and of what it writes."""
    reference = [tensor.clone() for tensor in tensors]
    with torch.no_grad():
        expected = module(*reference)
    result, record, graph = seen(module, *tensors)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(tensors, reference, rtol=1e-5, atol=1e-5)
    assert record.chains == {"qk-norm + rope + store": len(module.layers)}
    return list(graph.graph.nodes)


def stacks(nodes):
    """How many layers each tensor of places is of."""
    cats = [node for node in nodes if node.target is torch.ops.aten.cat.default]
    return [len(node.args[0]) for node in cats if not node.meta["val"].dtype.is_floating_point]


@pytest.mark.parametrize(
    ("batch", "tokens"), [(2, 1), *(pytest.param(*x, marks=pytest.mark.slow) for x in ((1, 1), (2, 3)))]
)
@pytest.mark.parametrize("shape", [(), pytest.param((1,), marks=pytest.mark.slow)])
def test_the_places_of_all_layers_are_in_one_tensor(batch, tokens, shape):
    nodes = check(Layers(), inputs((5, 0, LENGTH - tokens), batch, tokens, shape))
    assert stacks(nodes) == [3]


def test_counters_are_advanced_one_by_one():
    """A list operation is a kernel whose blocks write a counter each, beside one that reads several."""
    nodes = check(Layers(), inputs())
    written = [node.args[0].meta["val"].shape for node in nodes if node.target is torch.ops.aten.copy_.default]
    assert written.count(torch.Size([])) == 3
    assert not [node for node in nodes if "foreach" in str(node.target)]


def test_a_negative_place_counts_from_the_end_in_each_layer():
    assert stacks(check(Layers(assigned=True), inputs((-1, 4, -LENGTH)))) == [3]


@pytest.mark.parametrize("wrong", mostly_slow(LENGTH, -LENGTH - 1))
def test_a_place_that_is_not_there_is_an_error_in_any_layer(wrong):
    with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
        seen(Layers(assigned=True), *inputs((5, wrong, 3)))


@pytest.mark.slow
def test_one_layer_needs_no_stack():
    assert not stacks(check(Layers(1), inputs((5,))))


@pytest.mark.slow
def test_places_that_tokens_decide_stay_where_they_are():
    layers = Layers(3)
    layers.places[1] = lambda x, start: start + (x[0, :, 0] > 1e9).long()
    assert stacks(check(layers, inputs())) == [2]


@pytest.mark.slow
def test_places_of_another_dtype_have_a_tensor_of_their_own():
    layers = Layers(5, assigned=True)
    layers.places[1:3] = [lambda x, start: behind(x, start).to(torch.int32)] * 2
    assert sorted(stacks(check(layers, inputs((1, 2, 3, 4, 5))))) == [2, 3]


def test_layers_with_caches_of_another_length_have_a_tensor_of_their_own():
    """A place is checked against the length of its own cache."""
    tensors = inputs((1, LENGTH + 1, 3, LENGTH + 3))
    for layer in (1, 3):
        for i in (2 + 3 * layer, 3 + 3 * layer):
            tensors[i] = torch.cat((tensors[i], tensors[i]), 2)
    assert stacks(check(Layers(4), tensors)) == [2, 2]


@pytest.mark.slow
def test_places_of_layers_that_are_not_stored_to_stay_where_they_are():
    ops = {op: devices for op, devices in EVERYWHERE.items() if "kvcache" not in op}
    _, record, graph = seen(Layers(3), *inputs(), ops=ops)
    assert record.chains == {"qk-norm + rope": 3}
    assert not stacks(graph.graph.nodes)


@pytest.mark.slow
def test_places_on_a_device_without_ops_stay():
    _, _, graph = seen(Layers(3), *inputs(), ops=dict.fromkeys(EVERYWHERE, frozenset({"cuda"})))
    assert not stacks(graph.graph.nodes)


@pytest.mark.slow
def test_layers_with_places_in_common_need_no_stack():
    class Common(Layers):
        def forward(self, x, positions, *states):
            first = behind(x, states[2])
            self.places = [lambda _x, _start: first] * 2
            return super().forward(x, positions, *states)

    assert not stacks(check(Common(2), inputs((5, 5))))
