"""Attention to heads that several heads of q share: what reads the cache as it lies, and what keeps its copies."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from sgljit_compile import attention
from sgljit_compile.inductor import attention_op
from sgljit_compile.records import Graph
from sgljit_compile.rewriting import rewrite

from .tiny import EVERYWHERE, mostly_slow, seen

HEADS, KV_HEADS, SIZE, LENGTH = 6, 2, 16, 24
aten = torch.ops.aten


def repeated(x, each):
    batch, heads, length, size = x.shape
    return x.unsqueeze(2).expand(batch, heads, each, length, size).reshape(batch, heads * each, length, size)


def interleaved(x, each):
    return x.repeat_interleave(each, dim=1)


def tiled(x, each):
    """The heads in another order: 0, 1, 0, 1."""
    batch, heads, length, size = x.shape
    return x.unsqueeze(1).expand(batch, each, heads, length, size).reshape(batch, each * heads, length, size)


class Attention(nn.Module):
    """A decode as models write it. Its parts are attributes, which a test replaces."""

    def __init__(self, repeat=repeated, is_causal=False):
        super().__init__()
        self.repeat, self.is_causal = repeat, is_causal

    def attend(self, q, keys, values, mask):
        return scaled_dot_product_attention(q, keys, values, mask, is_causal=self.is_causal)

    def forward(self, q, keys, values, mask=None):
        each = q.shape[1] // keys.shape[1]
        return self.attend(q * 1, self.repeat(keys, each), self.repeat(values, each), mask).transpose(1, 2) * 1


class Products(Attention):
    """Attention as two matrix products."""

    def attend(self, q, keys, values, mask):
        scores = q @ keys.transpose(2, 3) * 0.3
        return (scores if mask is None else scores + mask).softmax(-1) @ values


def given(batch=2, tokens=1, kv_heads=KV_HEADS, dtype=torch.float32, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    shapes = ((batch, tokens, HEADS, SIZE), *[(batch, kv_heads, LENGTH, SIZE)] * 2)
    q, keys, values = (torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)
    return [q.transpose(1, 2), keys, values]


def mask_of(kind, batch=2, tokens=1, dtype=torch.float32, device="cpu"):
    shapes = {"one": (1, 1), "sequence": (batch, 1), "head": (batch, HEADS)}
    keep = torch.rand(*shapes[kind], tokens, LENGTH, generator=torch.Generator().manual_seed(1)) < 0.6
    keep[..., 0] = True
    return torch.where(keep, 0.0, float("-inf")).to(device, dtype)


def check(module, inputs, chains, **options):
    with torch.no_grad():
        expected = module(*inputs)
    result, record, graph = seen(module, *inputs, **options)
    tolerance = 1e-5 if inputs[0].dtype == torch.float32 else 2e-2
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)
    assert record.chains == chains
    return graph


def copies(graph):
    """The copies of whole keys or values in a graph."""
    return [
        node
        for node in graph.graph.nodes
        if node.target is aten.clone.default and node.meta["val"].shape[-2:] == (LENGTH, SIZE)
    ]


@pytest.mark.parametrize("repeat", [repeated, pytest.param(interleaved, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [None, "one", "sequence", "head"])
@pytest.mark.parametrize("batch", mostly_slow(2, 1))
def test_one_token_reads_the_cache_as_it_lies(batch, kind, repeat):
    inputs = given(batch)
    if kind is not None:
        inputs.append(mask_of(kind, batch))
    graph = check(Attention(repeat), inputs, {attention.ATTENTION: 1})
    assert not copies(graph)


@pytest.mark.parametrize("kv_heads", [1, 3])
def test_other_numbers_of_heads(kv_heads):
    check(Attention(), [*given(kv_heads=kv_heads), mask_of("sequence")], {attention.ATTENTION: 1})


@pytest.mark.parametrize("kind", [None, "sequence", "head"])
def test_products_of_one_token_read_the_cache_as_it_lies(kind):
    inputs = given() if kind is None else [*given(), mask_of(kind)]
    graph = check(Products(), inputs, {attention.PRODUCT: 2})
    assert not copies(graph)


@pytest.mark.parametrize("kind", ["one", "sequence", "head"])
def test_several_tokens_with_a_mask_keep_their_copies(kind):
    """As many tokens as heads share one of k: masks of tokens have the shape of masks of heads."""
    tokens = HEADS // KV_HEADS
    graph = check(Attention(), [*given(tokens=tokens), mask_of(kind, tokens=tokens)], {})
    assert len(copies(graph)) == 2


@pytest.mark.parametrize("kind", ["one", "sequence", "head"])
@pytest.mark.parametrize("tokens", [2, HEADS // KV_HEADS])
def test_several_tokens_with_one_mask_keep_their_copies(kind, tokens):
    """A mask of padding is [batch, 1, 1, length], for however many tokens."""
    graph = check(Attention(), [*given(tokens=tokens), mask_of(kind)], {})
    assert len(copies(graph)) == 2


@pytest.mark.parametrize("form", [Attention, Products])
def test_several_tokens_without_a_mask(form):
    graph = check(form(), given(tokens=3), {attention.ATTENTION: 1} if form is Attention else {attention.PRODUCT: 2})
    assert not copies(graph)


def test_products_of_several_tokens_have_no_mask_of_their_own():
    check(Products(), [*given(tokens=3), mask_of("head", tokens=3)], {attention.PRODUCT: 2})


@pytest.mark.parametrize("form", [Attention, Products])
@pytest.mark.parametrize("heads", [4, 6])
def test_heads_in_another_order_stay(form, heads):
    """2 heads, twice each, have the same shapes in both orders."""
    q, *sides = given()
    check(form(tiled), [q[:, :heads], *sides, mask_of("sequence")], {})


def test_heads_that_are_not_repeated_stay():
    check(Attention(lambda x, _each: x), [*given(kv_heads=HEADS), mask_of("one")], {})


def test_a_causal_token_attends_to_the_first_key_alone():
    check(Attention(is_causal=True), given(), {})


def test_a_cache_without_the_form_of_a_view_stays():
    """[batch * heads, length, size] is no view of a cache whose heads are not side by side."""
    q, _, values = given()
    wide = torch.randn(2, KV_HEADS + 1, LENGTH, SIZE, generator=torch.Generator().manual_seed(2))
    check(Attention(), [q, wide[:, :KV_HEADS], values, mask_of("one")], {})


def test_strides_that_something_names_stay():
    class Named(Attention):
        def attend(self, q, keys, values, mask):
            out = super().attend(q, keys, values, mask)
            return out.as_strided((2, HEADS, 3, SIZE), out.stride()) * 2

    check(Named(), given(tokens=3), {})


def test_sizes_that_change_stay():
    inputs = [*given(3), mask_of("sequence", 3)]
    for tensor in inputs:
        torch._dynamo.mark_dynamic(tensor, 0)
    check(Attention(), inputs, {})


@pytest.mark.parametrize("differs", [False, True])
def test_layers_with_one_mask_share_what_is_made_of_it(differs):
    class Layers(Attention):
        def forward(self, q, keys, values, keep):
            for layer in range(3):
                low = float("-inf") if not differs or layer else -2.0
                q = super().forward(q, keys, values, torch.where(keep, 0.0, low)).transpose(1, 2)
            return q

    keep = mask_of("sequence") == 0
    graph = check(Layers(), [*given(), keep], {attention.ATTENTION: 3})
    assert sum(node.target is aten.as_strided.default for node in graph.graph.nodes) == 1 + differs
    assert sum(node.target is aten.where.self for node in graph.graph.nodes) == 1 + differs


@pytest.mark.parametrize(
    "ops", [{}, {"fused_add_rmsnorm": frozenset({"cpu"})}, dict.fromkeys(EVERYWHERE, frozenset({"cuda"}))]
)
def test_it_stays_where_chains_of_heads_are_off(ops):
    check(Attention(), [*given(), mask_of("one")], {}, ops=ops)


def on_cuda(name, tokens=1, mask=(1, 1), takes=True, cache=None, heads=None):
    """A graph for a GPU after the pass, without one: torch computes shapes alone. Its kernel of attention, and more.

    Args:
        takes: what torch says of cuDNN with fewer heads of k.
        cache: the sizes of the cache of k, of which the keys are a part.
        heads: heads that the mask is expanded to.
    """
    target = attention_op(name)

    def decode(q, keys, values, mask):
        each = HEADS // KV_HEADS
        keys = keys.narrow(2, 0, LENGTH).narrow(3, 0, SIZE) if cache else keys
        mask = mask.expand(-1, heads, -1, -1) if heads else mask
        return target(q, repeated(keys, each), repeated(values, each), mask, False, scale=0.25)[0] * 1

    options = {"dtype": torch.bfloat16, "device": "cuda"}
    with FakeTensorMode(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "is_taken", lambda _kernel, _given, _is_causal: takes)
        inputs = [torch.empty(x.shape, **options) for x in given(tokens=tokens)]
        if cache:
            inputs[1] = torch.empty(2, KV_HEADS, *cache, **options)
        inputs.append(torch.empty(*mask, tokens, LENGTH, **options))
        module = make_fx(decode, decomposition_table=select_decomp_table())(*inputs)
        module.graph.eliminate_dead_code()
        record = Graph()
        rewrite(module.graph, EVERYWHERE, record)
    module.graph.lint()
    (call,) = (node for node in module.graph.nodes if node.target is target)
    (result,) = (node for node in module.graph.nodes if node.op == "output")
    assert result.args[0].meta["val"].shape == (2, HEADS, tokens, SIZE)
    return call, record, module


@pytest.mark.parametrize("tokens", [1, 3])
def test_cudnn_gets_the_heads_of_the_cache(tokens):
    call, record, module = on_cuda("cudnn_attention", tokens)
    assert record.chains == {attention.ATTENTION: 1}
    assert [node.op for node in call.args[:3]] == ["placeholder"] * 3
    assert call.args[3].meta["val"].shape == (1, 1, tokens, LENGTH)
    assert not copies(module)


def test_cudnn_that_takes_no_fewer_heads_keeps_its_copies():
    call, record, module = on_cuda("cudnn_attention", takes=False)
    assert record.chains == {}
    assert len(copies(module)) == 2
    assert call.args[1].meta["val"].shape == (2, HEADS, LENGTH, SIZE)


@pytest.mark.parametrize("mask", [(1, 1), (2, 1), (2, HEADS)])
def test_another_kernel_gets_rows_in_the_place_of_heads(mask):
    call, record, module = on_cuda("efficient_attention", mask=mask)
    each = HEADS // KV_HEADS
    assert record.chains == {attention.ATTENTION: 1}
    assert not copies(module)
    shapes = [tuple(node.meta["val"].shape) for node in call.args[:4]]
    keys = (2 * KV_HEADS, 1, LENGTH, SIZE)
    assert shapes == [(2 * KV_HEADS, 1, each, SIZE), keys, keys, (2 * KV_HEADS, 1, each, LENGTH)]


@pytest.mark.parametrize("name", ["cudnn_attention", "efficient_attention"])
@pytest.mark.parametrize(("cache", "is_aligned"), [((LENGTH, SIZE + 1), False), ((LENGTH, SIZE + 8), True)])
def test_a_cache_whose_rows_are_not_aligned_keeps_its_copies(name, cache, is_aligned):
    """Kernels read 16 bytes at once: of such a cache they raise an error that ends CUDA for the process."""
    _, record, module = on_cuda(name, cache=cache)
    assert record.chains == ({attention.ATTENTION: 1} if is_aligned else {})
    assert len(copies(module)) == (0 if is_aligned else 2)


def test_a_mask_that_was_expanded_is_not_written_for_each_head():
    call, _, _ = on_cuda("cudnn_attention", tokens=3, heads=HEADS)
    assert call.args[3].meta["val"].shape == (1, 1, 3, LENGTH)


def test_a_mask_of_many_steps_takes_no_time():
    """Each step takes the one before twice: as text it has 2 ** 64 of them."""

    class Deep(Attention):
        def forward(self, q, keys, values, mask):
            for _ in range(64):
                mask = torch.where(mask > 0, mask, mask)
            return super().forward(q, keys, values, mask)

    check(Deep(), [*given(), mask_of("sequence").clamp(min=-2)], {attention.ATTENTION: 1})


def test_another_kernel_with_several_tokens_keeps_its_copies():
    _, record, module = on_cuda("efficient_attention", tokens=3)
    assert record.chains == {}
    assert len(copies(module)) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("backend", [SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION])
@pytest.mark.parametrize("kind", ["one", "sequence", "head"])
@pytest.mark.parametrize("tokens", [1, 3])
def test_kernels_of_a_gpu(backend, kind, tokens):
    if not torch.cuda.is_available():  # outside of the checkout nobody else asks
        pytest.skip("no CUDA device")
    options = {"dtype": torch.bfloat16, "device": "cuda"}
    inputs = [*given(2, tokens, **options), mask_of(kind, 2, tokens, **options)]
    is_grouped = tokens == 1 or backend is SDPBackend.CUDNN_ATTENTION
    with sdpa_kernel(backend):
        graph = check(Attention(), inputs, {attention.ATTENTION: 1} if is_grouped else {})
    assert len(copies(graph)) == (0 if is_grouped else 2)
