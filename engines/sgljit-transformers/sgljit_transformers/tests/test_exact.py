"""``SGLJIT_ENGINES=exact``: the bits of a model are its own."""

from __future__ import annotations

import logging

import pytest
import torch

import sgljit_transformers
from sgljit_core import ops
from sgljit_engines import report
from sgljit_engines.uses import USES
from sgljit_transformers import adapter

from .tiny import model, prompt


@pytest.fixture(params=[pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.delenv("SGLJIT_SHADOW", raising=False)
    monkeypatch.setenv("SGLJIT_ENGINES", "exact,strict")
    adapter.ADAPTER._said.clear()
    USES.clear()
    yield
    USES.clear()


def with_outliers(name: str, dtype: torch.dtype, device: str):
    """A model some of whose columns are a hundred times as large as others, as those of real ones are."""
    net = model(name)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in net.parameters():
            columns = torch.randn(parameter.shape[-1], generator=generator).mul(1.5).exp().clamp(max=30)
            parameter.mul_(columns if parameter.dim() == 1 else columns / columns.mean())
    return net.to(device, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama", "qwen3", "deepseek_v3"])
def test_activations_have_the_bits_of_the_models_own_code(name, dtype, device):
    net, ids = with_outliers(name, dtype, device), prompt(device)
    with torch.no_grad():
        own = net(ids).logits
        layers = sgljit_transformers.enable(net)
        assert set(layers.values()) == {"silu_and_mul"}
        assert torch.equal(net(ids).logits.view(torch.int16), own.view(torch.int16))
    assert sum(use.calls for use in report()) == len(layers)
    why = {use.op: use.why for use in report()}
    assert why["silu_and_mul"] == ""
    assert why["rmsnorm"] == "SGLJIT_ENGINES=exact: none of its modes gives the bits of the engine's own code"


def test_without_it_the_bits_differ(monkeypatch):
    """Or the test above shows nothing."""
    monkeypatch.setenv("SGLJIT_ENGINES", "silu_and_mul")
    net, ids = with_outliers("qwen3", torch.bfloat16, "cpu"), prompt()
    with torch.no_grad():
        own = net(ids).logits
        sgljit_transformers.enable(net)
        assert not torch.equal(net(ids).logits, own)


@pytest.mark.parametrize(("name", "dtype"), [("gemma3", torch.bfloat16), ("qwen3", torch.float32)])
def test_what_cannot_be_proven_is_the_models_own(name, dtype, caplog):
    caplog.set_level(logging.INFO, "sgljit")
    net = model(name, dtype)
    assert sgljit_transformers.enable(net) == {}
    whys = " ".join(use.why for use in report())
    if name == "gemma3":
        assert "does nothing" not in caplog.text
        assert whys.count("none of its modes") >= 2
    else:
        assert "that it gives the bits of the engine's own code cannot be proven in torch.float32" in whys


def test_a_layer_whose_bits_differ_keeps_its_code(monkeypatch):
    """As on a device whose exponential is another."""
    own = ops["activation"].silu_and_mul

    def op(gate, out=None, up=None, *, round_first=False):
        result = own(gate, out, up, round_first=round_first)
        return result.copy_(torch.where(gate == 1.5, result * 1.01, result))

    monkeypatch.setattr(ops["activation"], "silu_and_mul", op)
    assert sgljit_transformers.enable(model("llama", torch.bfloat16)) == {}
    assert "1 of 65536 gates give other bits than the engine's own code" in {use.why for use in report()}


def test_a_model_that_moved_to_another_dtype_runs_its_own_code():
    net, ids = model("llama", torch.bfloat16), prompt()
    with torch.no_grad():
        assert sgljit_transformers.enable(net)
        net.to(torch.float16)
        logits = net(ids).logits
        sgljit_transformers.disable(net)
        assert torch.equal(net(ids).logits, logits)


def test_what_is_compared_is_compared_by_its_bits(monkeypatch):
    monkeypatch.setenv("SGLJIT_SHADOW", "1")
    net, ids = model("llama", torch.bfloat16), prompt()
    with torch.no_grad():
        sgljit_transformers.enable(net)
        net(ids)
    (use,) = [use for use in report() if use.compared]
    assert (use.op, use.compared, use.worst) == ("silu_and_mul", 2, 0.0)
