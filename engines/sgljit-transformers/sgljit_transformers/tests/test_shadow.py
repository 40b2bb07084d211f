"""``SGLJIT_SHADOW`` in real models: what is compared, what is found, and what it costs."""

from __future__ import annotations

import copy
import logging
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import sgljit_transformers
from sgljit_core import ops
from sgljit_engines import report
from sgljit_engines.errors import DisagreementError
from sgljit_engines.uses import USES
from sgljit_transformers import adapter

from .tiny import model, prompt


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """A share of 1 in 1000; ops that are lost, reports and files end with the test."""
    monkeypatch.delenv("SGLJIT_ENGINES", raising=False)
    monkeypatch.setenv("SGLJIT_SHADOW", "0.001")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    forget()  # also what other tests, in the same process, have left
    yield
    forget()


def forget() -> None:
    adapter.ADAPTER.lost.clear()
    adapter.ADAPTER._said.clear()
    USES.clear()


def compared() -> dict[str, tuple[int, float]]:
    """How many calls of each op were compared, and the largest difference."""
    return {use.op: (use.compared, use.worst) for use in report() if use.compared}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_a_share_of_the_calls_is_compared_and_nothing_else_changes(name, dtype, monkeypatch):
    net, ids = model(name, dtype), prompt()
    with torch.no_grad():
        monkeypatch.setenv("SGLJIT_SHADOW", "0")
        with sgljit_transformers.enabled(net):
            expected = net(ids).logits
        assert not compared()
        monkeypatch.setenv("SGLJIT_SHADOW", "0.1")
        layers = sgljit_transformers.enable(net)
        before = torch.get_rng_state()
        for _ in range(10):
            assert torch.equal(net(ids).logits, expected)
        assert torch.equal(torch.get_rng_state(), before)
    found = compared()
    assert found.keys() == set(layers.values())
    norm = {"qwen3": "rmsnorm", "gemma3": "gemma_rmsnorm"}[name]
    kinds = {use.kind for use in report() if use.op == norm} - {"SGLJIT_SHADOW=0.1"}
    calls = 10 * list(layers.values()).count(norm)
    assert abs(found[norm][0] - (len(kinds) + calls / 10)) <= len(kinds), "the first of each kind, and one of ten"
    assert all(worst < 0.7 for _, worst in found.values())


def plant(monkeypatch, family: str, name: str, fault: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
    """Put a fault behind an op: it gets the op's result, and what that is in float32, and changes the former."""
    own = getattr(ops[family], name)

    def activation(gate, out, up):
        out = own(gate, out, up)
        fault(out, torch.nn.functional.silu(gate.float()) * up.float())
        return out

    def norm(x, weight, out, eps):
        wide = x.float()
        out = torch.empty_like(x) if out is None else out
        own(x, weight, out, eps)
        fault(out, wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float())

    def rope(q, k, cos, sin, q_out, k_out):
        own(q, k, cos, sin, q_out, k_out)
        fault(q_out, q_out.float())

    op = {"activation": activation, "norm": norm, "rope": rope}[family]

    op.__name__ = name
    monkeypatch.setattr(ops[family], name, op)


def cut_off(out: torch.Tensor, wide: torch.Tensor) -> None:
    """The upper half of each float32, as a kernel without rounding stores it."""
    out.copy_((wide.view(torch.int32) & -(1 << 16)).view(torch.float32))


def one_wrong(out: torch.Tensor, wide: torch.Tensor) -> None:
    out[..., -1] *= 1.1


@pytest.mark.parametrize(
    ("family", "name", "fault", "text"),
    [
        ("activation", "silu_and_mul", cut_off, r"is rounded to one side: in the mean its elements are 0\.\d\d units"),
        ("activation", "silu_and_mul", one_wrong, r"differs at \[0, \d, 95\]"),
        ("norm", "rmsnorm", cut_off, r"is rounded to one side"),
        ("norm", "rmsnorm", one_wrong, r"differs at \[0, \d, 63\]"),
        ("rope", "apply_rotary_pos_emb", one_wrong, r"differs at \[0, 0, \d, 15\]"),
    ],
)
def test_a_fault_is_found_once_and_takes_the_op_out_of_use(family, name, fault, text, monkeypatch, caplog):
    net, ids = model("qwen3", torch.bfloat16), prompt()
    plant(monkeypatch, family, name, fault)
    caplog.set_level(logging.INFO, "sgljit")
    with torch.no_grad():
        own = net(ids).logits
        layers = sgljit_transformers.enable(net)
        for _ in range(3):
            logits = net(ids).logits
    assert {use.op for use in report() if use.layers} == set(layers.values()) - {name}
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"{name} failed, and " in warning
    uses = [use for use in report() if use.op == name]
    assert all(re.match(rf"DisagreementError: a result {text}", use.why) for use in uses), uses
    (file,) = Path(tempfile.gettempdir()).glob("sgljit-shadow-*/*.pt")
    assert str(file) in warning
    kept = torch.load(file)
    assert kept["op"] == f"{family}.{name}"
    assert {"sgljit-transformers", "transformers", f"sgljit-{family}", "torch"} < kept["versions"].keys()
    assert kept["ours"][0].shape == kept["theirs"][0].shape
    assert kept["args"]
    with torch.no_grad(), sgljit_transformers.enabled(model("qwen3", torch.bfloat16)) as other:
        assert torch.equal(other(ids).logits, logits), "the op is not used again"
        sgljit_transformers.disable(net)
        assert torch.equal(net(ids).logits, own)


def test_a_copy_of_a_model_loses_the_op_too(monkeypatch):
    net, ids = model("qwen3", torch.bfloat16), prompt()
    plant(monkeypatch, "activation", "silu_and_mul", one_wrong)
    with torch.no_grad():
        sgljit_transformers.enable(net)
        other = copy.deepcopy(net)
        expected = net(ids).logits
        assert torch.equal(other(ids).logits, expected)


def test_strict_raises_it(monkeypatch):
    net = model("qwen3", torch.bfloat16)
    plant(monkeypatch, "activation", "silu_and_mul", one_wrong)
    monkeypatch.setenv("SGLJIT_ENGINES", "strict")
    sgljit_transformers.enable(net)
    with torch.no_grad(), pytest.raises(DisagreementError, match=r"in call 1 a result differs at \[0, \d, 95\]"):
        net(prompt())


def test_a_graph_of_the_compiler_is_not_compared_and_not_guarded():
    net, ids = model("qwen3"), prompt()
    graphs = []

    def note(graph, _inputs):
        graphs.append(graph)
        return graph

    with torch.no_grad():
        sgljit_transformers.enable(net, in_graphs=True)
        torch.compiler.reset()
        compiled = torch.compile(net, fullgraph=True, backend=note)
        for _ in range(3):
            compiled(ids, use_cache=False)
    assert len(graphs) == 1
    assert not compared()


@pytest.mark.gpu
def test_while_a_graph_is_captured_nothing_is_compared(monkeypatch):
    monkeypatch.setenv("SGLJIT_SHADOW", "1")
    layer, x = model("qwen3", device="cuda").model.norm, torch.randn(4, 64, device="cuda")
    sgljit_transformers.enable(layer)
    with torch.no_grad():
        expected = layer(x)
        assert compared()["rmsnorm"][0] == 1
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = layer(x)
        graph.replay()
        assert torch.equal(out, expected)
        assert compared()["rmsnorm"][0] == 1
        layer(x)
        assert compared()["rmsnorm"][0] == 2, "between replays"


def test_with_gradients_a_layer_runs_its_own_code_and_nothing_is_compared():
    layer = model("qwen3").model.norm
    sgljit_transformers.enable(layer)
    layer(torch.ones(2, 64)).sum().backward()
    assert not compared()


def test_without_it_a_layer_has_the_same_function(monkeypatch):
    """Whether calls are compared is decided once, when a model is enabled."""
    layer = model("qwen3").model.norm
    codes = []
    for share in ("0", "", "0.5"):
        monkeypatch.setenv("SGLJIT_SHADOW", share)
        with sgljit_transformers.enabled(layer):
            codes.append(layer.forward.__func__.__qualname__)
    assert codes == ["_norm.<locals>.forward", "_norm.<locals>.forward", "_compared.<locals>.compared"]
