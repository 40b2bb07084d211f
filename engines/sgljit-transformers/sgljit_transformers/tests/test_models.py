"""Every model computes what it computed before, on the ops that it is said to run on."""

from __future__ import annotations

import copy
import itertools
from collections import Counter

import pytest
import torch

import sgljit_transformers
from sgljit_core import ops

from .tiny import MODELS, experts, generate, mlps, model, norms, prompt, rotations


@pytest.fixture(params=[pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_tokens_are_those_of_eager(name, device):
    _, _, op, number = MODELS[name]
    net, ids = model(name, device=device), prompt(device)
    with torch.no_grad():
        expected, tokens = net(ids).logits, generate(net, ids)
        done = sgljit_transformers.enable(net)
        actual, generated = net(ids).logits, generate(net, ids)
    assert done == {**dict.fromkeys(norms(net), op), **mlps(name), **rotations(name), **experts(name)}
    assert len(norms(net)) == number
    assert expected.std() > 0.1
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(generated, tokens)


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_left_of_the_models_own_norms_activations_and_rotations(name):
    net, ids = model(name), prompt()
    with torch.no_grad():
        before = calls(net, ids)
        sgljit_transformers.enable(net)
        after = calls(net, ids)
    assert before["aten::rsqrt"] - after["aten::rsqrt"] == len(norms(net))
    activation = "aten::gelu" if name == "gemma3" else "aten::silu"
    of_experts = 0 if name == "gpt_oss" else list(experts(name).values()).count("expert_matvec")
    assert before[activation] - after[activation] == len(mlps(name)) + of_experts
    of_rotations = {"aten::chunk": 2} if name == "gpt_oss" else {"aten::neg": 2}
    for called, times in of_rotations.items():
        assert before[called] - after[called] == times * len(rotations(name))


def calls(net: torch.nn.Module, ids: torch.Tensor) -> Counter[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        net(ids)
    return Counter({event.key: event.count for event in profile.key_averages()})


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MODELS)
def test_in_half_precision_a_norm_is_at_least_as_exact(name, dtype, device):
    net = model(name, dtype, device)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for layer in norms(net).values():
            x = torch.randn(2, 3, layer.weight.shape[0], generator=generator).to(device, dtype)
            wide, scale = x.double(), layer.weight.double() + (name == "gemma3")
            exact = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * scale
            own = (layer(x).double() - exact).abs().max()
            with sgljit_transformers.enabled(layer):
                ours = layer(x)
            assert ours.dtype == dtype
            assert (ours.double() - exact).abs().max() <= own * 1.001  # it rounds once where most models round twice


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_in_half_precision_an_mlp_is_at_least_as_exact(name, dtype, device):
    """It rounds the product alone, where a model rounds the activation, too. One rounding more or less is luck."""
    mlp, x = model(name, dtype, device).model.layers[0].mlp, torch.randn(8, 200, 64).to(device, dtype)
    wide = copy.deepcopy(mlp).double()
    mlp.down_proj = wide.down_proj = torch.nn.Identity()
    with torch.no_grad():
        gate, up = mlp.gate_proj(x).double(), mlp.up_proj(x).double()
        exact, own = wide.act_fn(gate) * up, mlp(x).double()
        with sgljit_transformers.enabled(mlp):
            ours = mlp(x)
    assert ours.dtype == dtype
    assert (ours.double() - exact).square().mean() < (own - exact).square().mean()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_a_rotation_is_more_exact(dtype, device):
    """It rounds once, where a model rounds both products and their sum."""
    layer = model("qwen3", dtype, device).model.layers[0].self_attn
    theirs = type(layer).forward.__globals__["apply_rotary_pos_emb"]
    q, k = (torch.randn(2, 40, heads, 16).to(device, dtype).transpose(1, 2) for heads in (4, 2))
    cos, sin = (torch.rand(2, 40, 16).to(device, dtype) for _ in "cs")
    ours = [torch.full_like(one, torch.nan) for one in (q, k)]
    with torch.no_grad():
        exact, own = theirs(*(one.double() for one in (q, k, cos, sin))), theirs(q, k, cos, sin)
        ops["rope"].apply_rotary_pos_emb(q, k, cos, sin, *ours)
    for got, other, wanted in zip(ours, own, exact, strict=True):
        assert (got.double() - wanted).square().mean() < (other.double() - wanted).square().mean()


@pytest.mark.parametrize(
    ("name", "in_graphs"),
    [
        pytest.param(*one, marks=[] if one == ("gemma3", True) else [pytest.mark.slow])
        for one in itertools.product(MODELS, (False, True))
    ],
)
def test_a_compiled_model_is_one_graph_with_ops_where_they_are_wanted(name, in_graphs, device):
    net, ids = model(name, device=device), prompt(device)
    graphs = []

    def note(graph, _inputs):
        graphs.append(graph)
        return graph

    with torch.no_grad():
        expected = net(ids, use_cache=False).logits
        layers = sgljit_transformers.enable(net, in_graphs=in_graphs)
        torch.compiler.reset()
        compiled = torch.compile(net, fullgraph=True, backend=note)
        actual = compiled(ids, use_cache=False).logits
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    (graph,) = graphs
    ours = [node for node in graph.graph.nodes if "sgljit" in str(node.target)]
    assert len(ours) == (len(layers) - len(rotations(name)) - len(experts(name)) if in_graphs else 0)


@pytest.mark.slow
def test_a_model_that_was_compiled_before_still_computes_the_same():
    net, ids = model("qwen3"), prompt()
    torch.compiler.reset()
    compiled = torch.compile(net, backend="aot_eager")
    with torch.no_grad():
        expected = compiled(ids, use_cache=False).logits
        sgljit_transformers.enable(compiled)
        torch.testing.assert_close(compiled(ids, use_cache=False).logits, expected, rtol=1e-4, atol=1e-5)
        sgljit_transformers.disable(compiled)
        torch.testing.assert_close(compiled(ids, use_cache=False).logits, expected, rtol=1e-4, atol=1e-5)


def test_a_copy_of_an_enabled_model_runs_on_its_own_weights():
    net, ids = model("qwen3"), prompt()
    sgljit_transformers.enable(net)
    other = copy.deepcopy(net)
    with torch.no_grad():
        other.model.norm.weight.mul_(2)
        expected = 2 * net(ids).logits
        torch.testing.assert_close(other(ids).logits, expected, rtol=1e-4, atol=1e-5)
    sgljit_transformers.disable(other)
    assert "forward" not in vars(other.model.norm)
    assert "forward" in vars(net.model.norm)
