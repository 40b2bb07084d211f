"""The order of experts for grouped products: what is put on an op, and what is not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code

import sgljit_compile

from .tiny import EVERYWHERE, mostly_slow, seen

PART = "order of experts"
TAKEN = "something takes a value inside of it, such as the histogram"
EXPERTS, K = 16, 4
aten = torch.ops.aten


class Experts(nn.Module):
    """The order of experts of transformers' grouped products. Its parts are methods, which subclasses replace."""

    experts, options = EXPERTS, {}

    def sort(self, ids, **options):
        return torch.sort(ids, **options, **self.options)

    def choose(self, gates):
        return torch.topk(gates, K, dim=-1)

    def histogram(self, sorted_ids):
        wide = sorted_ids.float() if sorted_ids.device.type == "cpu" else sorted_ids.int()
        return torch.histc(wide, bins=self.experts, min=0, max=self.experts - 1)

    def ends(self, counts):
        return torch.cumsum(counts, dim=0, dtype=torch.int32)

    def inverse(self, order):
        places = torch.empty_like(order)
        places[order] = torch.arange(order.size(0), device=order.device)
        return places

    def forward(self, gates):
        ids = self.choose(gates).indices.reshape(-1)
        sorted_ids, order = self.sort(ids)
        return sorted_ids, order // K, self.inverse(order), self.ends(self.histogram(sorted_ids))


def given(tokens=7, experts=EXPERTS, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    return torch.stack([torch.randperm(experts, generator=generator) for _ in range(tokens)]).float().to(device)


def eager(module, inputs, options):
    """Of equal ids, a sort may take any first. The op takes them in their order, as one with ``stable`` does."""
    ordered = type(module)()
    ordered.__dict__.update(module.__dict__ | {"options": options})
    with torch.no_grad():
        return ordered(inputs)


def check(module, part=PART, inputs=None, **options):
    inputs = given() if inputs is None else inputs
    expected = eager(module, inputs, {"stable": True} if part else {})
    result, record, graph = seen(module, inputs, **options)
    for actual, wanted in zip(result, expected, strict=True):
        assert actual.dtype == wanted.dtype
        assert actual.stride() == wanted.stride()
        assert torch.equal(actual, wanted)
    assert record.chains == ({part: 1} if part else {})
    targets = {node.target for node in graph.graph.nodes}
    assert bool({aten.sort.default, aten.sort.stable} & targets) == (not part)
    return record, graph


def test_all_of_it_is_one_op():
    _, graph = check(Experts())
    left = {node.target for node in graph.graph.nodes}
    assert not {aten.histc.default, aten.cumsum.default, aten.index_put.default} & left
    (call,) = (node for node in graph.graph.nodes if "topk_ids" in node.kwargs)
    assert call.kwargs["topk_ids"].target is not aten.reshape.default


@pytest.mark.parametrize("tokens", [1, 600])
def test_one_token_and_many(tokens):
    check(Experts(), inputs=given(tokens))


def test_a_number_of_tokens_that_changes():
    inputs = given(6)
    torch._dynamo.mark_dynamic(inputs, 0)
    _, graph = check(Experts(), inputs=inputs)
    assert any("sym_size" in str(node.target) for node in graph.graph.nodes)


def test_a_sort_that_keeps_the_order_of_equal_ids():
    module = Experts()
    module.options = {"stable": True}
    check(module)


def test_the_order_may_be_used_alone():
    class Forward(Experts):
        def inverse(self, order):
            return order * 2

    _, graph = check(Forward())
    assert aten.histc.default not in {node.target for node in graph.graph.nodes}


def test_the_order_may_be_turned_round_twice():
    class Twice(Experts):
        def forward(self, gates):
            sorted_ids, order = self.sort(self.choose(gates).indices.reshape(-1))
            ends = self.ends(self.histogram(sorted_ids))
            return self.inverse(order), self.inverse(order) + 1, ends, ends * 2, self.ends(self.histogram(sorted_ids))

    check(Twice())


class Wider(Experts):
    """More experts are counted than can be chosen: an id is no expert of the op's then."""

    def histogram(self, sorted_ids):
        return torch.histc(sorted_ids.float(), bins=EXPERTS + 1, min=0, max=EXPERTS)


class Halves(Experts):
    def histogram(self, sorted_ids):
        return torch.histc(sorted_ids.float(), bins=EXPERTS, min=0, max=EXPERTS)


class Shifted(Experts):
    def histogram(self, sorted_ids):
        return torch.histc(sorted_ids.float(), bins=EXPERTS, min=1, max=EXPERTS)


class OfOtherIds(Experts):
    def histogram(self, sorted_ids):
        return super().histogram(sorted_ids // 2)


class Long(Experts):
    def ends(self, counts):
        return torch.cumsum(counts, dim=0, dtype=torch.int64)


class NoSum(Experts):
    def ends(self, counts):
        return counts.int()


class Given(Experts):
    """The ids are of no choice: any number may be there."""

    def forward(self, gates):
        sorted_ids, order = self.sort(gates.long().reshape(-1))
        return sorted_ids, order, self.inverse(order), self.ends(self.histogram(sorted_ids))


class Masked(Experts):
    """As with experts on several devices."""

    def forward(self, gates):
        ids = self.choose(gates).indices
        ids = ids.masked_fill(ids > 4, EXPERTS).reshape(-1)
        sorted_ids, order = self.sort(ids)
        return sorted_ids, order, self.inverse(order), self.ends(self.histogram(sorted_ids))


class OfTokens(Experts):
    def choose(self, gates):
        return torch.topk(gates, K, dim=0)


class OfASort(Experts):
    """The second result of another op."""

    def choose(self, gates):
        return torch.sort(gates)


class Values(Experts):
    def forward(self, gates):
        values = self.choose(gates).values.reshape(-1)
        sorted_ids, order = self.sort(values)
        return sorted_ids, order, self.inverse(order), self.ends(self.histogram(sorted_ids))


class Backwards(Experts):
    def forward(self, gates):
        sorted_ids, _ = self.sort(self.choose(gates).indices.reshape(-1), descending=True)
        return sorted_ids, self.ends(self.histogram(sorted_ids))


class ByRows(Experts):
    def forward(self, gates):
        sorted_ids, order = self.sort(self.choose(gates).indices)
        return sorted_ids, order, self.ends(self.histogram(sorted_ids))


@pytest.mark.parametrize(
    "form",
    mostly_slow(
        *(Wider, Halves, Shifted, OfOtherIds, Long, NoSum, Given, Masked, OfTokens, OfASort, Values, Backwards, ByRows)
    ),
)
def test_another_computation_stays(form):
    record, _ = check(form(), None, given(tokens=EXPERTS))
    assert not record.left


def test_a_histogram_that_is_used_elsewhere_stays():
    class Taken(Experts):
        def forward(self, gates):
            sorted_ids, order = self.sort(self.choose(gates).indices.reshape(-1))
            histogram = self.histogram(sorted_ids)
            return self.inverse(order), self.ends(histogram), histogram * 2

    record, _ = check(Taken(), None)
    assert record.left == {(PART, TAKEN): 1}


class FromOne(Experts):
    """The places are counted from 1."""

    def inverse(self, order):
        places = torch.empty_like(order)
        places[order] = torch.arange(1, order.size(0) + 1)
        return places


class BySteps(Experts):
    def inverse(self, order):
        places = torch.empty_like(order)
        places[order] = torch.arange(0, 2 * order.size(0), 2)
        return places


class Added(Experts):
    def inverse(self, order):
        return torch.zeros_like(order).index_put((order,), torch.arange(order.size(0)), accumulate=True)


class Larger(Experts):
    """Some places keep what was there."""

    def inverse(self, order):
        places = torch.full((order.size(0) + 3,), 5)
        places[order] = torch.arange(order.size(0))
        return places


@pytest.mark.parametrize("form", mostly_slow(FromOne, BySteps, Added, Larger))
def test_another_inverse_stays_behind_the_op(form):
    _, graph = check(form())
    assert aten.index_put.default in {node.target for node in graph.graph.nodes}


def test_the_memory_of_an_inverse_may_be_an_input_of_the_graph():
    class Given(Experts):
        def forward(self, gates, memory):
            sorted_ids, order = self.sort(self.choose(gates).indices.reshape(-1))
            places = memory.index_put((order,), torch.arange(order.size(0)))
            return places, self.ends(self.histogram(sorted_ids))

    inputs = given()
    memory = torch.zeros(len(inputs) * K, dtype=torch.int64)
    (places, ends), record, _ = seen(Given(), inputs, memory)
    assert record.chains == {PART: 1}
    ids = inputs.topk(K).indices.reshape(-1)
    assert torch.equal(places, ids.argsort(stable=True).argsort())
    assert torch.equal(ends, ids.bincount(minlength=EXPERTS).cumsum(0).int())
    assert (memory == 0).all()


def test_what_is_switched_off_stays():
    ops = {op: devices for op, devices in EVERYWHERE.items() if op != "sort_by_expert"}
    for chosen in (ops, dict.fromkeys(EVERYWHERE, frozenset({"cuda"}))):
        record, _ = check(Experts(), None, ops=chosen)
        assert record.left == {(PART, "switched off"): 1}


def test_more_experts_than_the_op_takes_stay():
    module = Experts()
    module.experts = 2049
    record, _ = check(module, None, given(experts=2049))
    assert record.left == {(PART, "sort_by_expert does not take it, or cannot be built"): 1}


@pytest.mark.slow
def test_compiled_with_a_number_of_tokens_that_changes():
    torch.compiler.reset()
    call = torch.compile(Experts(), backend="sgljit", options={"chains": "moe", "force_disable_caches": True})
    inputs = given(6)
    torch._dynamo.mark_dynamic(inputs, 0)
    with torch.no_grad():
        actual, (code,) = run_and_get_code(call, inputs)
        assert all(map(torch.equal, actual, eager(Experts(), inputs, {"stable": True})))
        others, count = given(20), len(sgljit_compile.explain())
        assert all(map(torch.equal, call(others), eager(Experts(), others, {"stable": True})))
        assert len(sgljit_compile.explain()) == count
    assert sgljit_compile.explain()[-1].chains == {PART: 1}
    assert code.count("sgljit_sort_by_expert(") == 1


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 100, 1000])
def test_on_a_gpu(tokens):
    if not torch.cuda.is_available():  # outside of the checkout nobody else asks
        pytest.skip("no CUDA device")
    inputs = given(tokens, device="cuda")
    module = Experts()
    (sorted_ids, tokens_of, places, ends), record, _ = seen(module, inputs)
    assert record.chains == {PART: 1}
    ids = module.choose(inputs).indices.reshape(-1)
    wanted, order = torch.sort(ids, stable=True)
    assert torch.equal(sorted_ids, wanted)
    assert torch.equal(tokens_of, order // K)
    assert torch.equal(places, order.argsort())
    assert torch.equal(ends, wanted.bincount(minlength=EXPERTS).cumsum(0).int())
