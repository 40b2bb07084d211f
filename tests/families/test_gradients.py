"""A gradient through an op: refused wherever somebody asks for one."""

from __future__ import annotations

import functools
import sys

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from sgljit_core import errors
from sgljit_norm import fused_add_rmsnorm, layernorm, rmsnorm

TEXT = (
    r"norm\.rmsnorm\(\): weight requires grad, and this op is for inference only: it has no gradient\. Call it under "
    r"torch\.no_grad\(\) or torch\.inference_mode\(\), or pass weight\.detach\(\)"
)


@pytest.fixture
def weight():
    return torch.nn.Parameter(torch.full((4,), 2.0))


def changed(x, weight):
    y = x + 0
    rmsnorm(y, weight)
    return y


def test_an_argument_that_requires_grad_is_refused_by_name_and_nothing_is_written(weight):
    x = torch.full((2, 4), 3.0)
    with pytest.raises(errors.InferenceOnlyError, match=TEXT) as caught:
        rmsnorm(x, weight)
    assert isinstance(caught.value, RuntimeError)
    assert x.tolist() == [[3.0] * 4] * 2


@pytest.mark.parametrize("name", ["input", "weight", "bias", "out"])
def test_every_tensor_counts(name):
    tensors = {"input": torch.ones(2, 4), "weight": torch.ones(4), "bias": torch.ones(4), "out": torch.ones(2, 4)}
    tensors[name].requires_grad_()
    with pytest.raises(errors.InferenceOnlyError, match=rf"norm\.layernorm\(\): {name} requires grad"):
        layernorm(**tensors)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_grad_mode_parameters_may_be_what_they_are(weight, mode):
    with mode():
        assert torch.equal(changed(torch.ones(2, 4), weight), changed(torch.ones(2, 4), weight.detach()))


def test_by_its_name_in_torch_ops_too(weight):
    with pytest.raises(errors.InferenceOnlyError, match=TEXT):
        torch.ops.sgljit_norm.rmsnorm_(torch.ones(2, 4), weight)
    with pytest.raises(errors.InferenceOnlyError, match=r"norm\.fused_add_rmsnorm\(\): residual requires grad"):
        torch.ops.sgljit_norm.fused_add_rmsnorm(
            torch.ones(2, 4), residual=torch.ones(2, 4, requires_grad=True), weight=torch.ones(4)
        )


def redispatches(function) -> int:
    """How often a call leads to the dispatcher a second time."""
    found = []
    sys.setprofile(lambda frame, event, _: found.append(event == "call" and frame.f_code.co_name == "redispatch"))
    try:
        function()
    finally:
        sys.setprofile(None)
    return sum(found)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # make_dual, of itself
def test_a_call_of_a_graph_asks_the_dispatcher_once_and_a_gradient_is_refused_all_the_same(weight):
    """Graphs call ``torch.ops`` without grad mode, and a second question takes nearly as long as the rest."""
    x = torch.ones(2, 4)
    call = torch.no_grad()(functools.partial(torch.ops.sgljit_norm.rmsnorm_, x))
    call(weight)
    assert redispatches(lambda: call(weight)) == 0
    with forward_ad.dual_level():
        assert redispatches(lambda: call(weight)) == 1
        dual = forward_ad.make_dual(torch.ones(4), torch.ones(4))
        with pytest.raises(errors.InferenceOnlyError, match="weight has a tangent"):
            call(dual)
    assert redispatches(lambda: call(weight)) == 0
    with pytest.raises(errors.InferenceOnlyError, match="weight requires grad"):
        torch.ops.sgljit_norm.rmsnorm_(x, weight)


def test_a_tracer_sees_a_call_without_grad_mode_like_any_other():
    @torch.no_grad()
    def f(x):
        y = x + 1
        torch.ops.sgljit_norm.rmsnorm_(y, torch.ones(4))
        return y

    x = torch.ones(2, 4)
    expected = f(x)
    assert redispatches(lambda: f(x)) == 0
    graph = make_fx(f)(x)
    assert "sgljit_norm.rmsnorm_" in graph.code
    assert torch.equal(graph(x), expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_in_a_compiled_graph_too(weight, backend):
    torch.compiler.reset()
    compiled = torch.compile(changed, fullgraph=True, backend=backend)
    with pytest.raises(RuntimeError, match="requires grad, and this op is for inference only"):
        compiled(torch.ones(2, 4), weight)
    with torch.no_grad():
        assert torch.equal(compiled(torch.ones(2, 4), weight), changed(torch.ones(2, 4), weight))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch.func.jvp, of itself
def test_transforms_that_differentiate_are_refused():
    x, weight = torch.ones(2, 4), torch.ones(4)
    with pytest.raises(errors.InferenceOnlyError, match="input requires grad"):
        torch.func.grad(lambda x: changed(x, weight).sum())(x)
    with pytest.raises(errors.InferenceOnlyError, match="input has a tangent"):
        torch.func.jvp(lambda x: changed(x, weight), (x,), (x,))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)
        with pytest.raises(errors.InferenceOnlyError, match="residual has a tangent"):
            torch.ops.sgljit_norm.fused_add_rmsnorm(x.clone(), dual, weight)


def test_a_gradient_beside_an_op_is_what_it_was():
    x = torch.ones(2, 4, requires_grad=True)
    other = torch.ones(2, 4)
    fused_add_rmsnorm(other, other.clone(), torch.ones(4))
    (x * other).sum().backward()
    assert torch.equal(x.grad, other)
