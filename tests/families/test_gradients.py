"""A gradient through an op: refused wherever somebody asks for one."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

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
