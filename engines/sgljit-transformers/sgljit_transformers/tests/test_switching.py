"""Enabling and disabling: what is said, what is kept, and what is left exactly as it was."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import pickle
import re
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import forward_ad

import sgljit_transformers
from sgljit_core import stats
from sgljit_core.errors import ConfigError
from sgljit_engines import report
from sgljit_engines.errors import UnsupportedEngineError
from sgljit_transformers import adapter, errors, norms as norm_layers, rotations as rotation_layers

from .tiny import model, norms, of_type, prompt


@pytest.fixture(autouse=True)
def by_default(monkeypatch):
    monkeypatch.delenv("SGLJIT_ENGINES", raising=False)
    adapter.ADAPTER._said.clear()


@pytest.fixture
def kernels():
    """The package that ``use_kernels`` needs, in a release that this transformers takes."""
    if not importlib.import_module("transformers.utils").is_kernels_available():
        pytest.skip("this release of transformers asks for another release of kernels")
    return importlib.import_module("kernels")


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, "sgljit")
    return lambda: "\n".join(record.getMessage() for record in caplog.records if record.name == "sgljit")


def attributes(net):
    """Every attribute of every module, and of its class but for kernelize's condition, by identity."""
    instances = {name: {key: id(value) for key, value in vars(module).items()} for name, module in net.named_modules()}
    classes = {cls: {key: id(value) for key, value in vars(cls).items()} for cls in {type(m) for m in net.modules()}}
    for cls in classes:
        classes[cls].pop("kernel_condition", None)
    return instances, classes


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_after_disable_the_model_is_exactly_as_it_was(name):
    net = model(name)
    before = attributes(net)
    forwards_before = {name: layer.forward for name, layer in norms(net).items()}
    state = list(net.state_dict())
    sgljit_transformers.enable(net)
    assert attributes(net) != before
    assert attributes(net)[1] == before[1], "a class was changed"
    assert list(net.state_dict()) == state
    sgljit_transformers.disable(net)
    assert attributes(net) == before
    assert {name: layer.forward for name, layer in norms(net).items()} == forwards_before


def test_a_forward_that_transformers_put_there_comes_back(kernels):
    net, ids = model("llama"), prompt()
    with kernels.use_kernel_mapping({}, inherit_mapping=False):
        # Without a mapping each layer gets the forward of its class.
        kernels.kernelize(net, mode=kernels.Mode.INFERENCE, device="cpu")
    before = {name: vars(layer)["forward"] for name, layer in norms(net).items()}
    with torch.no_grad(), sgljit_transformers.enabled(net):
        assert all(vars(layer)["forward"] is not before[name] for name, layer in norms(net).items())
        net(ids)
    assert all(vars(layer)["forward"] is before[name] for name, layer in norms(net).items())


def test_other_models_and_other_layers_are_not_touched():
    net, other = model("qwen3"), model("qwen3")
    before = attributes(other)
    changed = sgljit_transformers.enable(net)
    assert attributes(other) == before
    assert {name for name, module in net.named_modules() if "forward" in vars(module)} == set(changed)


def heads(size=16, tokens=5, dtype=torch.float32, unsqueeze=1):
    """Queries, keys, cosines and sines, as an attention has them."""
    q, k = (torch.randn(2, tokens, heads, size).to(dtype) for heads in (4, 2))
    cos, sin = (torch.randn(2, tokens, size).to(dtype) for _ in "cs")
    return (*((q.transpose(1, 2), k.transpose(1, 2)) if unsqueeze == 1 else (q, k)), cos, sin)


def in_forward(layer, name="apply_rotary_pos_emb"):
    """The function that an enabled layer's ``forward`` finds under a name."""
    code = next(
        cell.cell_contents
        for cell in layer.forward.__func__.__closure__
        if callable(cell.cell_contents) and getattr(cell.cell_contents, "__name__", "") == "forward"
    )
    return code.__globals__[name]


def test_a_rotation_is_replaced_in_the_enabled_model_alone():
    module = importlib.import_module("transformers.models.qwen3.modeling_qwen3")
    net, own = model("qwen3"), module.apply_rotary_pos_emb
    sgljit_transformers.enable(net)
    assert module.apply_rotary_pos_emb is own
    rotate = in_forward(net.model.layers[0].self_attn)
    assert rotate is not own
    kind = "Qwen3Attention 16 float32 cpu"
    (use,) = (use for use in report() if (use.op, use.kind) == ("apply_rotary_pos_emb", kind))
    with torch.no_grad():
        for arguments, options, runs in (
            (heads(), {}, True),
            (heads(), {"unsqueeze_dim": 1}, True),
            ((*heads()[:2], *(one[:1] for one in heads()[2:])), {}, True),  # angles for all sequences
            (heads(dtype=torch.bfloat16), {}, True),
            (heads(unsqueeze=2), {"unsqueeze_dim": 2}, False),
            (
                (*heads(dtype=torch.bfloat16)[:2], *heads()[2:]),
                {},
                False,
            ),  # angles in another dtype, which is the result's
            ((*heads(dtype=torch.bfloat16)[:1], *heads()[1:]), {}, False),  # keys in another dtype
            (heads(dtype=torch.float64), {}, False),
        ):
            before = counted(use)
            (q, k), wanted = rotate(*arguments, **options), own(*arguments, **options)
            torch.testing.assert_close(q, wanted[0], rtol=2e-2, atol=3e-2)
            torch.testing.assert_close(k, wanted[1], rtol=2e-2, atol=3e-2)
            after = counted(use)
            assert (after[0] - before[0], after[1] - before[1]) == ((1, 0) if runs else (0, 1))


def test_a_rotation_by_pairs_runs_on_the_op_where_the_angles_are_half_a_head():
    module = importlib.import_module("transformers.models.gpt_oss.modeling_gpt_oss")
    net, own = model("gpt_oss"), module.apply_rotary_pos_emb
    sgljit_transformers.enable(net)
    rotate = in_forward(net.model.layers[0].self_attn)
    (use,) = (use for use in report() if use.kind.startswith("GptOssAttention") and use.layers)
    with torch.no_grad():
        for sequences, options, runs in ((2, {}, True), (1, {}, True), (2, {"unsqueeze_dim": 1}, True)):
            q, k, cos, sin = heads()
            cos, sin = cos[:sequences, :, :8], sin[:sequences, :, :8]
            before = counted(use)
            for x, wanted in zip(rotate(q, k, cos, sin, **options), own(q, k, cos, sin), strict=True):
                torch.testing.assert_close(x, wanted)
            assert counted(use) == (before[0] + runs, before[1])
        with pytest.raises(RuntimeError, match="must match the size"):  # as the model's own function does
            rotate(*heads())


@pytest.mark.parametrize(
    ("model_type", "share", "runs"),
    [
        ("phi3", 1.0, True),
        ("phi3", 0.5, False),
        ("gpt_neox", 0.25, False),
        ("phi", 0.5, True),  # its forward cuts the heads, and its function rotates all that it gets
    ],
)
def test_a_rotation_of_a_part_of_each_head_is_the_models_own_and_the_report_says_so(model_type, share, runs):
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": share}
    net, ids = of_type(model_type, rope_parameters=rope), prompt()
    with torch.no_grad():
        expected = net(ids).logits
        done = sgljit_transformers.enable(net)
        torch.testing.assert_close(net(ids).logits, expected, rtol=1e-4, atol=1e-4)
    (attention,) = {
        type(layer).__name__ for name, layer in net.named_modules() if re.search("(attention|_attn)$", name)
    }
    assert ("apply_rotary_pos_emb" in done.values()) == runs
    uses = [use for use in report() if use.op == "apply_rotary_pos_emb" and use.kind.startswith(attention)]
    (use,) = (use for use in uses if bool(use.layers) == runs and use.kind.endswith("in parts") != runs)
    assert use.why == ("" if runs else "it rotates a part of each head")
    assert (use.calls > 0, use.own_calls) == (runs, 0)


@pytest.fixture
def few_and_many(monkeypatch):
    """Ops are tried with 1 row and with 3: the size of a row and the device, as they were asked for."""
    asked = []

    def try_rows(call, *what):
        asked.append(what)
        for rows in (1, 3):
            call(rows)

    for module in (norm_layers, rotation_layers):
        monkeypatch.setattr(module, "try_rows", try_rows)
    return asked


def test_a_norm_is_tried_with_few_rows_and_many(monkeypatch, few_and_many):
    tried = []
    norm = SimpleNamespace(rmsnorm=lambda x, *others: tried.append((x.shape, others)))
    monkeypatch.setattr(norm_layers, "ops", {"norm": norm})
    layer = torch.nn.RMSNorm(64, eps=1e-6)
    sgljit_transformers.enable(layer)
    assert few_and_many == [(64, "cpu")]
    assert [shape for shape, _ in tried] == [(1, 64), (3, 64)]
    assert all(torch.equal(weight, layer.weight) and rest == [None, 1e-6] for _, (weight, *rest) in tried)


@pytest.mark.gpu
def test_after_enable_no_number_of_rows_has_a_norm_of_its_own_to_build():
    layer = torch.nn.RMSNorm(128, eps=1e-6, dtype=torch.bfloat16, device="cuda")
    sgljit_transformers.enable(layer)
    before = stats()
    with torch.no_grad():
        for rows in (1, 7, 33, 150, 300, 420, 600, 900, 1100, 5000, 17000, 70000, 131072):
            layer(torch.ones(rows, 128, dtype=torch.bfloat16, device="cuda"))
    assert stats().loads.keys() == before.loads.keys()


@pytest.mark.parametrize(("name", "angles"), [("qwen3", 16), ("gpt_oss", 8)])
def test_a_rotation_is_tried_with_the_heads_of_the_model(name, angles, monkeypatch, few_and_many):
    """As its projections give them: the tokens side by side."""
    tried = []
    rope = SimpleNamespace(apply_rotary_pos_emb=lambda *tensors: tried.append(tensors))
    monkeypatch.setattr(rotation_layers, "ops", {"rope": rope})
    sgljit_transformers.enable(model(name).model.layers[0].self_attn, ops="rope")
    assert few_and_many == [((4 + 2) * 16, "cpu")]
    assert [[x.shape for x in tensors] for tensors in tried] == [
        [(1, 4, n, 16), (1, 2, n, 16), *[(1, n, angles)] * 2, (1, 4, n, 16), (1, 2, n, 16)] for n in (1, 3)
    ]
    assert all(tensors[i].transpose(1, 2).is_contiguous() for tensors in tried for i in (0, 1, 4, 5))


@pytest.mark.gpu
def test_after_enable_no_number_of_tokens_has_a_rotation_of_its_own_to_build():
    net = model("qwen3", torch.bfloat16, "cuda")
    sgljit_transformers.enable(net)
    rotate, before = in_forward(net.model.layers[0].self_attn), stats()
    with torch.no_grad():
        for tokens in (1, 7, 600, 1100, 2500, 9000, 16384):
            q, k, cos, sin = (x[:1].cuda() for x in heads(tokens=tokens, dtype=torch.bfloat16))
            rotate(q, k, cos, sin)
    assert stats().loads.keys() == before.loads.keys()


def test_classes_of_one_name_keep_each_its_own_code(monkeypatch):
    module = importlib.import_module("transformers.models.qwen3.modeling_qwen3")
    monkeypatch.setitem(globals(), "apply_rotary_pos_emb", module.apply_rotary_pos_emb)
    net, ids = model("qwen3"), prompt()

    def forward(self, *args, **kwargs):
        out, weights = type(self).__mro__[1].forward(self, *args, **kwargs)
        heads = out[:, None]
        rotated, _ = apply_rotary_pos_emb(heads, heads, torch.ones_like(out), torch.ones_like(out))  # noqa: F821
        return rotated[:, 0], weights

    net.model.layers[1].self_attn.__class__ = type("Qwen3Attention", (module.Qwen3Attention,), {"forward": forward})
    with torch.no_grad():
        own = net(ids).logits
        assert len(sgljit_transformers.enable(net, ops="rope")) == 2
        torch.testing.assert_close(net(ids).logits, own, rtol=1e-4, atol=1e-5)


def counted(use):
    """The calls of a use's op, and those of the model's own code."""
    now = next(one for one in report() if (one.op, one.kind) == (use.op, use.kind))
    return now.calls, now.own_calls


def ours(net):
    """The layers that run on an op, by name."""
    return {name for name, layer in net.named_modules() if layer.forward.__module__.startswith("sgljit_transformers")}


STEPS = {
    "enable": sgljit_transformers.enable,
    "disable": sgljit_transformers.disable,
    "kernels": lambda net: setattr(net, "use_kernels", True),
    "retrain": lambda net: net.train().eval(),  # kernelizes again, where kernels are used
    "part": lambda net: sgljit_transformers.enable(net.model),
}


@pytest.mark.parametrize(
    "steps",
    [
        "enable kernels",
        "kernels enable",
        "kernels enable retrain",
        "enable kernels retrain disable kernels enable",
        "kernels enable disable enable retrain",
        "part kernels retrain",
    ],
)
@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
@pytest.mark.usefixtures("kernels")
def test_kernels_of_transformers_may_be_switched_on_at_any_time(name, steps):
    net, ids = model(name), prompt()
    classes = attributes(net)[1]
    with torch.no_grad():
        own = net(ids).logits
        on_ops = sgljit_transformers.enable(net)
        expected = net(ids).logits
        sgljit_transformers.disable(net)
        for step in steps.split():
            STEPS[step](net)
        assert ours(net) == set(on_ops)
        assert torch.equal(net(ids).logits, expected)
        sgljit_transformers.disable(net)
        assert not ours(net)
        assert torch.equal(net(ids).logits, own)
        sgljit_transformers.enable(net)
        assert ours(net) == set(on_ops)
        sgljit_transformers.disable(net)
    assert attributes(net)[1] == classes


class Doubled(torch.nn.Module):
    """A kernel as of the Hub."""

    def forward(self, hidden_states):
        return 2 * hidden_states


def test_a_mapping_of_kernels_reaches_the_layers_of_other_models_as_ever():
    from kernels import Mode, kernelize, replace_kernel_forward_from_hub, use_kernel_mapping

    class Repository:
        def load(self):
            return Doubled

    class Plain(torch.nn.RMSNorm):
        pass

    replace_kernel_forward_from_hub(Plain, "Plain", lambda layer: layer.eps == 1e-6)
    net, other, third = Plain(8, 1e-6), Plain(8, 1e-6), Plain(8, 1e-5)
    sgljit_transformers.enable(net)
    with use_kernel_mapping({"Plain": {"cpu": Repository()}}, inherit_mapping=False):
        for layer in (net, other, third):
            kernelize(layer, mode=Mode.INFERENCE, device="cpu")
    assert ours(net) == {""}
    assert other.forward.__func__ is Doubled.forward
    assert "forward" not in vars(third), "the class had a condition, and it counts"
    sgljit_transformers.disable(net)
    assert "forward" not in vars(net)


def give_own(layer):
    layer.forward = type(layer).forward.__get__(layer)


@pytest.mark.parametrize("taken", [lambda layer: vars(layer).pop("forward"), give_own])
def test_a_layer_that_has_its_own_forward_back_is_no_obstacle(taken):
    net = model("llama")
    before = attributes(net)
    done = sgljit_transformers.enable(net)
    taken(net.model.norm)
    sgljit_transformers.disable(net)
    assert attributes(net) == before
    assert sgljit_transformers.enable(net) == done


def test_the_context_manager_disables_also_after_an_error():
    net = model("llama")
    before = attributes(net)
    with sgljit_transformers.enabled(net) as same:
        assert same is net
    assert attributes(net) == before
    with pytest.raises(ValueError, match="input_ids"), sgljit_transformers.enabled(net):
        net()
    assert attributes(net) == before


def test_the_log_says_which_layers_run_on_what(said):
    sgljit_transformers.enable(model("qwen3"))
    assert "with transformers 5." in said()
    text = "2 Qwen3Attention on apply_rotary_pos_emb, 9 Qwen3RMSNorm on rmsnorm, 2 Qwen3MLP on silu_and_mul"
    assert f"Qwen3ForCausalLM on cpu: {text}" in said()
    assert "gemma" not in said()
    assert "gelu" not in said()


def test_a_model_that_is_called_with_gradients_is_one_warning(said):
    net, ids = model("qwen3"), prompt()
    sgljit_transformers.enable(net)
    with torch.no_grad():
        net(ids)
    net.train()
    net(ids)
    assert "gradients" not in said()
    net.eval()
    for _ in range(2):
        net(ids)
    assert said().count("a model in eval() that is called while gradients are enabled") == 1
    assert "Call it inside of torch.inference_mode(), or torch.no_grad()" in said()


@pytest.mark.parametrize("make", [lambda: model("llama").model.norm, lambda: model("llama").model.layers[0].mlp])
def test_each_kind_of_layer_warns_of_gradients(make, said):
    layer = make()
    sgljit_transformers.enable(layer)
    layer(torch.randn(2, 64))
    assert said().count("while gradients are enabled") == 1


def test_off_does_nothing_and_disable_takes_it(monkeypatch, said):
    monkeypatch.setenv("SGLJIT_ENGINES", "off")
    net = model("llama")
    before = attributes(net)
    assert sgljit_transformers.enable(net) == {}
    assert attributes(net) == before
    assert "does nothing: SGLJIT_ENGINES=off" in said()
    sgljit_transformers.disable(net)


def test_a_list_of_ops_chooses(monkeypatch):
    monkeypatch.setenv("SGLJIT_ENGINES", "gemma_rmsnorm")
    assert sgljit_transformers.enable(model("llama")) == {}
    assert len(sgljit_transformers.enable(model("gemma3"))) == 13
    monkeypatch.setenv("SGLJIT_ENGINES", "silu_and_mul")
    assert set(sgljit_transformers.enable(model("llama")).values()) == {"silu_and_mul"}


def test_the_op_that_is_not_chosen_is_the_models_own_code_bit_for_bit(said):
    net, ids = model("qwen3"), prompt()
    with torch.no_grad():
        own, mlps = net(ids).logits, [layer.mlp for layer in net.model.layers]
        with sgljit_transformers.enabled(net, ops="norm,-activation.silu_and_mul"):
            assert len(ours(net)) == 9
            assert not any("forward" in vars(mlp) for mlp in mlps)
        assert set(sgljit_transformers.enable(net, ops="-norm,-rope").values()) == {"silu_and_mul"}
        sgljit_transformers.disable(net)
        with sgljit_transformers.enabled(net, ops="-rope"):
            assert not any("forward" in vars(layer.self_attn) for layer in net.model.layers)
        with sgljit_transformers.enabled(net, ops="off"):
            assert torch.equal(net(ids).logits, own)
    on_own = "2 Qwen3Attention on their own code, 9 Qwen3RMSNorm on their own code"
    assert f"2 Qwen3MLP on silu_and_mul, {on_own}" in said()
    assert said().count("does nothing: SGLJIT_ENGINES=on and ops='off'") == 1


@pytest.mark.parametrize("by", ["ops", "SGLJIT_ENGINES"])
def test_a_name_that_no_adapter_has_is_an_error_and_changes_nothing(by, monkeypatch):
    net = model("llama")
    before = attributes(net)
    if by == "SGLJIT_ENGINES":
        monkeypatch.setenv(by, "rmsnrom")
    with pytest.raises(ConfigError, match=rf"^{by} must be .*No adapter has 'rmsnrom'; there are norm\.rmsnorm, "):
        sgljit_transformers.enable(net, **({"ops": "rmsnrom"} if by == "ops" else {}))
    assert attributes(net) == before
    monkeypatch.delenv("SGLJIT_ENGINES", raising=False)
    assert sgljit_transformers.enable(net)


@pytest.fixture
def uses(monkeypatch):
    """The report of this test alone."""
    monkeypatch.setattr("sgljit_engines.adapter.USES", uses := {})
    monkeypatch.setattr("sgljit_engines.uses.USES", uses)
    return lambda: {use.kind: use for use in report()}


def test_a_report_has_each_kind_of_layer_and_counts_its_calls(uses):
    net, ids = model("qwen3"), prompt()
    net.model.norm.forward = give_own
    sgljit_transformers.enable(net, ops="norm")
    del net.model.norm.forward
    with torch.inference_mode():
        net(ids)
        net(ids)
    net(ids)
    of_attention, of_head, of_mlp, of_hidden, of_last = uses().values()
    assert (of_attention.kind, of_attention.why) == ("Qwen3Attention 16 float32 cpu", "switched off")
    assert (of_head.kind, of_head.op, of_head.why, of_head.layers) == ("Qwen3RMSNorm 16 float32 cpu", "rmsnorm", "", 4)
    assert (of_head.calls, of_head.own_calls) == (8, 4)
    assert (of_hidden.kind, of_hidden.layers, of_hidden.calls) == ("Qwen3RMSNorm 64 float32 cpu", 4, 8)
    assert (of_mlp.kind, of_mlp.op, of_mlp.why) == ("Qwen3MLP 96 float32 cpu", "silu_and_mul", "switched off")
    assert (of_last.kind, of_last.layers) == ("Qwen3RMSNorm 64 float32 cpu model.norm", 0)
    assert of_last.why.endswith("give_own is its forward")
    sgljit_transformers.disable(net)
    assert all(use.layers == 0 for use in uses().values())
    assert {use.why for use in (uses()[of_head.kind], uses()[of_hidden.kind])} == {"no enabled model has such a layer"}
    assert uses()[of_mlp.kind].why == "switched off"
    with sgljit_transformers.enabled(net):
        assert uses()[of_head.kind].why == ""


def test_a_model_without_an_op_leaves_the_report_of_another_that_runs_it(uses):
    one, other = model("qwen3"), model("qwen3")
    sgljit_transformers.enable(one, ops="norm.rmsnorm")
    sgljit_transformers.enable(other, ops="activation")
    found = uses()
    for size in (16, 64):
        assert found[f"Qwen3RMSNorm {size} float32 cpu"].why == ""
        assert found[f"Qwen3RMSNorm {size} float32 cpu of {type(other).__name__}"].why == "switched off"
    sgljit_transformers.disable(one)
    sgljit_transformers.disable(other)


def test_a_report_names_no_variant_of_a_layer_whose_device_has_none_yet(uses):
    with sgljit_transformers.enabled(torch.nn.RMSNorm(64, eps=1e-6)):
        assert uses()["RMSNorm 64 float32 cpu"].why == ""
    with sgljit_transformers.enabled(torch.nn.RMSNorm(64, eps=1e-6, device="meta")):
        assert uses()["RMSNorm 64 float32 meta"].variants == {}


def test_a_norm_of_a_dtype_that_the_op_does_not_take_is_not_said_to_run_on_it(uses, said):
    layer = torch.nn.RMSNorm(64, eps=1e-6, dtype=torch.float64)
    assert sgljit_transformers.enable(layer) == {}
    (use,) = uses().values()
    assert (use.kind, use.why) == ("RMSNorm 64 float64 cpu", "the op does not take it")
    assert "no layer is replaced, 1 RMSNorm on their own code" in said()
    sgljit_transformers.disable(layer)


def test_an_mlp_counts_as_well(uses):
    mlp, x = model("llama").model.layers[0].mlp, torch.randn(2, 64)
    sgljit_transformers.enable(mlp)
    with torch.inference_mode():
        mlp(x)
        mlp.up_proj.register_forward_hook(lambda _module, _input, out: columns(out))
        mlp(x)
    mlp(x)
    (use,) = uses().values()
    assert (use.layers, use.calls, use.own_calls) == (1, 1, 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: model("llama").model.norm,
        lambda: model("llama").model.layers[0].mlp,
        lambda: transposed(model("llama").model.layers[0].mlp),
    ],
)
@pytest.mark.parametrize("in_graphs", [False, True])
def test_a_compiled_layer_counts_nothing_and_is_compiled_once(make, in_graphs, uses):
    layer, graphs = make(), []
    sgljit_transformers.enable(layer, in_graphs=in_graphs)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph)
    with torch.inference_mode():
        for _ in range(3):
            compiled(torch.randn(2, 64))
    (use,) = uses().values()
    assert (use.calls, use.own_calls, len(graphs)) == (0, 0, 1)


def test_enable_twice_is_an_error_and_changes_nothing():
    net = model("llama")
    sgljit_transformers.enable(net)
    before = attributes(net)
    with pytest.raises(errors.AlreadyEnabledError, match=r"LlamaForCausalLM is enabled, .*disable\(\)"):
        sgljit_transformers.enable(net)
    with pytest.raises(errors.AlreadyEnabledError, match="LlamaModel is enabled, or holds a part"):
        sgljit_transformers.enable(net.model)
    assert attributes(net) == before


def test_enabling_a_model_of_which_a_part_is_enabled_is_an_error():
    net = model("llama")
    sgljit_transformers.enable(net.model.norm)
    with pytest.raises(errors.AlreadyEnabledError, match="holds a part"):
        sgljit_transformers.enable(net)


def test_disabling_a_model_disables_the_parts_that_were_enabled_by_themselves():
    net = model("llama")
    sgljit_transformers.enable(net.model.norm)
    sgljit_transformers.disable(net)
    assert sgljit_transformers.enable(net.model.norm) == {"": "rmsnorm"}


def test_an_enabled_model_that_was_pickled_runs_on_its_own_code_and_can_be_enabled():
    net, x = model("llama").model.norm, torch.randn(2, 64)
    sgljit_transformers.enable(net)
    other = pickle.loads(pickle.dumps(net))
    assert other.forward.__func__ is type(net).forward
    with pytest.raises(errors.NotEnabledError):
        sgljit_transformers.disable(other)
    assert sgljit_transformers.enable(other) == {"": "rmsnorm"}
    with torch.no_grad():
        assert torch.equal(other(x), net(x))
    sgljit_transformers.disable(other)
    assert other.forward.__func__ is type(net).forward
    assert "forward" in vars(net)


def test_disable_without_enable_is_an_error():
    with pytest.raises(errors.NotEnabledError, match=r"LlamaForCausalLM is not enabled; call .*enable\(model\)"):
        sgljit_transformers.disable(model("llama"))


def test_a_model_without_a_known_layer_is_a_sentence(monkeypatch, said):
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    assert sgljit_transformers.enable(net) == {}
    assert "Sequential has no layer that computes what an op does: it stays as it is" in said()
    sgljit_transformers.disable(net)
    monkeypatch.setenv("SGLJIT_ENGINES", "strict")
    with pytest.raises(errors.UnsupportedModelError, match="no layer that computes"):
        sgljit_transformers.enable(net)


def test_a_layer_of_another_adapter_is_left_to_it(monkeypatch, said):
    net = model("llama")

    def foreign(hidden_states):
        return hidden_states

    net.model.norm.forward = foreign
    assert len(sgljit_transformers.enable(net)) == 8
    assert net.model.norm.forward is foreign
    assert "1 layers keep the forward that something else has given them, such as model.norm" in said()
    assert "foreign" in said()
    sgljit_transformers.disable(net)
    before = attributes(net)
    monkeypatch.setenv("SGLJIT_ENGINES", "strict")
    with pytest.raises(errors.ForeignForwardError, match="Two adapters cannot replace one layer"):
        sgljit_transformers.enable(net)
    assert attributes(net) == before


def test_an_enable_that_fails_half_way_replaces_nothing(monkeypatch):
    net = model("gemma3")
    net.model.layers[0].mlp.norm = norms(model("llama"))["model.norm"]  # of another op
    before = attributes(net)
    monkeypatch.setenv("SGLJIT_ENGINES", "strict")
    monkeypatch.setattr(type(adapter.ADAPTER), "attempt_once", failing_for("rmsnorm"))
    with pytest.raises(OSError, match="no space"):
        sgljit_transformers.enable(net)
    assert attributes(net) == before


def failing_for(name):
    """An attempt as that of SGLJIT_ENGINES=strict, where one op cannot be built."""

    def attempt_once(_adapter, op, call, _answers, _key):
        if op == name:
            raise OSError("no space")
        call()
        return True

    return attempt_once


def test_a_forward_that_came_afterwards_must_go_first():
    net = model("llama")
    sgljit_transformers.enable(net)
    ours = net.model.norm.forward
    net.model.norm.forward = functools.partial(ours)
    before = attributes(net)
    with pytest.raises(errors.ForeignForwardError, match=r"something else has replaced the forward of model\.norm"):
        sgljit_transformers.disable(net)
    assert attributes(net) == before
    net.model.norm.forward = ours
    sgljit_transformers.disable(net)


def test_an_untested_version_is_a_sentence(monkeypatch, said):
    monkeypatch.setitem(adapter.ADAPTER.engine, "transformers", "<0.1")
    net = model("llama")
    before = attributes(net)
    assert sgljit_transformers.enable(net) == {}
    assert attributes(net) == before
    assert "tested with transformers<0.1" in said()
    sgljit_transformers.disable(net)
    monkeypatch.setenv("SGLJIT_ENGINES", "strict")
    with pytest.raises(UnsupportedEngineError, match="transformers"):
        sgljit_transformers.enable(net)


# What the op does not take goes to the model's own code.


@pytest.fixture
def layer():
    made = norms(model("llama"))["model.norm"]
    assert sgljit_transformers.enable(made, in_graphs=True) == {"": "rmsnorm"}
    yield made
    assert "forward" in vars(made), "the op was given up"


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("float64", lambda layer, x: (layer.double(), x.double())),
        ("an input of another dtype than the weight", lambda layer, x: (layer, x.bfloat16())),
        ("a weight of another dtype than the input", lambda layer, x: (layer.bfloat16(), x)),
        ("training", lambda layer, x: (layer.train(), x)),
        ("one row", lambda layer, x: (layer, x[0, 0])),
        ("a number", lambda layer, x: (layer, x[0, 0, 0])),
        ("one column", lambda layer, x: (layer, x[..., :1])),
        ("no row", lambda layer, x: (layer, x[:0])),
        ("columns", lambda layer, x: (layer, x.transpose(1, 2).contiguous().transpose(1, 2))),
        ("a slice of a wider projection", lambda layer, x: (layer, torch.cat([x, x], -1)[..., : x.shape[-1]])),
        ("heads", lambda layer, x: (layer, x.unflatten(1, (3, -1)))),
        ("meta", lambda layer, x: (layer.to("meta"), x.to("meta"))),
    ],
)
def test_an_odd_input_gives_what_the_models_own_code_gives(layer, what, change):
    x = torch.randn(2, 9, 64)
    layer, x = change(layer, x)
    with torch.no_grad():
        actual, expected = layer(x), type(layer).forward(layer, x)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert actual.device == expected.device
    if what != "meta":
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("x", [torch.randn(2, 9, 32), torch.randn(2, 9, 64, device="meta")])
def test_an_impossible_input_raises_what_the_models_own_code_raises(layer, x):
    with torch.no_grad():
        with pytest.raises(Exception) as own:  # noqa: PT011 - whatever it is
            type(layer).forward(layer, x)
        with pytest.raises(type(own.value)) as ours:
            layer(x)
    assert str(ours.value) == str(own.value)


def test_gradients_are_those_of_the_models_own_code(layer):
    x = torch.randn(2, 9, 64, requires_grad=True)
    layer(x).square().sum().backward()
    actual, x.grad = x.grad, None
    type(layer).forward(layer, x).square().sum().backward()
    assert torch.equal(actual, x.grad)
    assert layer.weight.grad is not None


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own use of it
def test_transforms_of_torch_func_see_the_models_own_code(layer):
    x = torch.randn(3, 9, 64)
    with torch.no_grad():
        actual = torch.vmap(layer)(x)
    torch.testing.assert_close(actual, type(layer).forward(layer, x).detach())
    for mode in (torch.enable_grad, torch.no_grad):
        with mode():
            _, tangent = torch.func.jvp(layer, (x,), (torch.ones_like(x),))
        assert tangent.abs().sum() > 0


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_a_tangent_passes_through_the_models_own_code(layer):
    x, tangent = torch.randn(3, 64), torch.randn(3, 64)
    with forward_ad.dual_level():
        actual = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, tangent))).tangent
        expected = forward_ad.unpack_dual(type(layer).forward(layer, forward_ad.make_dual(x, tangent))).tangent
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("what", ["an input of another dtype", "gradients", "training"])
def test_a_compiled_layer_keeps_its_own_code_where_it_must(layer, what):
    """A graph has no way back from an op that refuses its arguments."""
    x = torch.randn(2, 9, 64, dtype=torch.bfloat16 if "dtype" in what else torch.float32)
    layer.train(what == "training")
    torch.compiler.reset()
    with torch.set_grad_enabled(what == "gradients"):
        actual = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
        torch.testing.assert_close(actual, type(layer).forward(layer, x))
    assert actual.requires_grad == (what == "gradients")


def columns(x):
    """The same numbers, with those of a column side by side in memory."""
    return x.transpose(-2, -1).contiguous().transpose(-2, -1)


@pytest.mark.parametrize("shape", [(2, 9, 64), (1, 9, 64), (9, 64)])
def test_a_compiled_layer_takes_columns(layer, shape):
    x = columns(torch.randn(shape))
    torch.compiler.reset()
    with torch.no_grad():
        actual = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
        torch.testing.assert_close(actual, type(layer).forward(layer, x))


def test_a_model_that_changes_its_dtype_afterwards_computes_the_same(layer):
    layer.bfloat16()
    x = torch.randn(2, 9, 64, dtype=torch.bfloat16)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), type(layer).forward(layer, x))
    assert "forward" in vars(layer)


@pytest.mark.gpu
def test_a_model_that_moves_to_a_gpu_afterwards_computes_the_same():
    net, ids = model("qwen3"), prompt()
    sgljit_transformers.enable(net)
    net.cuda()
    with torch.no_grad():
        actual = net(ids.cuda()).logits
        sgljit_transformers.disable(net)
        torch.testing.assert_close(actual, net(ids.cuda()).logits, rtol=1e-4, atol=1e-5)


@pytest.fixture
def mlp():
    made = model("llama").model.layers[0].mlp
    assert sgljit_transformers.enable(made, in_graphs=True) == {"": "silu_and_mul"}
    yield made
    assert "forward" in vars(made), "the op was given up"


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("float64", lambda mlp, x: (mlp.double(), x.double())),
        ("bfloat16", lambda mlp, x: (mlp.bfloat16(), x.bfloat16())),
        ("training", lambda mlp, x: (mlp.train(), x)),
        ("one row", lambda mlp, x: (mlp, x[0, 0])),
        ("no row", lambda mlp, x: (mlp, x[:0])),
        ("columns", lambda mlp, x: (mlp, x.transpose(1, 2).contiguous().transpose(1, 2))),
        ("heads", lambda mlp, x: (mlp, x.unflatten(1, (3, -1)))),
        ("meta", lambda mlp, x: (mlp.to("meta"), x.to("meta"))),
        ("transposed projections", lambda mlp, x: (transposed(mlp), x)),
        ("projections of another dtype", lambda mlp, x: (widened(mlp), x)),
    ],
)
def test_an_odd_input_of_an_mlp_gives_what_the_models_own_code_gives(mlp, what, change):
    x = torch.randn(2, 9, 64)
    mlp, x = change(mlp, x)
    with torch.no_grad():
        actual, expected = mlp(x), type(mlp).forward(mlp, x)
    assert (actual.dtype, actual.shape, actual.device) == (expected.dtype, expected.shape, expected.device)
    if what != "meta":
        of_sums = {"rtol": 0.02, "atol": 0.02} if what == "bfloat16" else {}
        torch.testing.assert_close(actual, expected, **of_sums)


@pytest.mark.parametrize("shape", [(2, 9, 64), (1, 9, 64), (9, 64)])
@pytest.mark.parametrize("what", ["columns", "transposed projections"])
def test_a_compiled_mlp_takes_columns_and_has_projections_that_give_some(mlp, what, shape):
    x = torch.randn(shape)
    mlp, x = (mlp, columns(x)) if what == "columns" else (transposed(mlp), x)
    torch.compiler.reset()
    with torch.no_grad():
        actual = torch.compile(mlp, fullgraph=True, backend="aot_eager")(x)
        torch.testing.assert_close(actual, type(mlp).forward(mlp, x))


def transposed(mlp):
    """Projections whose results have no rows side by side."""
    for projection in (mlp.gate_proj, mlp.up_proj):
        projection.register_forward_hook(lambda _module, _input, out: columns(out))
    return mlp


def widened(mlp):
    mlp.up_proj.register_forward_hook(lambda _module, _input, out: out.double())
    mlp.down_proj.double()
    return mlp


def test_hooks_of_projections_run_once_and_gradients_are_those_of_the_models_own_code(mlp):
    called = []
    for projection in (mlp.gate_proj, mlp.up_proj, mlp.down_proj):
        projection.register_forward_hook(lambda *_: called.append(1))
    with torch.no_grad():
        mlp(torch.randn(2, 9, 64))
    assert len(called) == 3
    x = torch.randn(2, 9, 64, requires_grad=True)
    mlp(x).square().sum().backward()
    actual, x.grad = x.grad, None
    type(mlp).forward(mlp, x).square().sum().backward()
    assert torch.equal(actual, x.grad)


def test_an_mlp_that_got_another_activation_computes_that(mlp):
    mlp.act_fn = torch.nn.ReLU()
    x = torch.randn(2, 9, 64)
    with torch.no_grad():
        torch.testing.assert_close(mlp(x), type(mlp).forward(mlp, x))


def test_layers_of_one_class_with_several_classes_of_an_activation_run_on_the_op(uses):
    first, second = model("llama").model.layers
    second.mlp.act_fn = torch.nn.SiLU()
    both = torch.nn.ModuleList([first.mlp, second.mlp])
    sgljit_transformers.enable(both)
    with torch.no_grad():
        for layer in both:
            layer(torch.randn(2, 64))
    (use,) = uses().values()
    assert (use.layers, use.calls, use.own_calls) == (2, 2, 0)


def test_an_error_of_a_projection_is_the_models_own(mlp):
    with torch.no_grad(), pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        mlp(torch.randn(2, 9, 32))


def run(code: str, tmp_path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script with a cold cache of its own."""
    script = f"from {__package__}.tiny import *\nimport sgljit_transformers\n{textwrap.dedent(code)}"
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "SGLJIT_CACHE_DIR": str(tmp_path / "cold"), **env},
        capture_output=True,
        text=True,
        timeout=300,
    )


_FAILING = """
    net, ids = model("qwen3"), prompt()
    with torch.no_grad():
        expected = net(ids).logits
        print(len(sgljit_transformers.enable(net)), "replaced")
        assert torch.equal(net(ids).logits, expected)
        assert torch.equal(net(ids).logits, expected)
    assert not any("forward" in vars(layer) for layer in net.modules())
    sgljit_transformers.disable(net)
"""


@pytest.mark.slow
def test_an_op_that_cannot_be_built_is_one_warning(tmp_path):
    done = run(_FAILING, tmp_path, SGLJIT_JIT="error")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0 replaced\n"
    assert done.stderr.count("rmsnorm failed, and RMSNorm runs on the engine's own code") == 1
    assert "CompileForbiddenError" in done.stderr


@pytest.mark.slow  # a process that imports transformers and starts a compiler for each op
def test_a_broken_compiler_is_one_warning_and_no_line_claims_more(tmp_path):
    broken = tmp_path / "broken-cxx"
    broken.write_text('#!/bin/sh\ncase "$*" in *version*|*-E*) exec g++ "$@";; esac\necho "error: boom" >&2\nexit 1\n')
    broken.chmod(0o755)
    logged = 'import logging; logging.basicConfig(level="INFO", format="%(levelname)s %(name)s %(message)s")'
    done = run(logged + textwrap.dedent(_FAILING), tmp_path, SGLJIT_CXX=str(broken))
    assert done.returncode == 0, done.stderr
    assert re.findall("^WARNING sgljit .*failed, and the rotation of", done.stderr, re.MULTILINE)
    assert len(re.findall("^WARNING sgljit", done.stderr, re.MULTILINE)) == 1
    assert " runs on rmsnorm" not in done.stderr
    assert " on silu_and_mul" not in done.stderr
    layers = ("2 Qwen3Attention", "9 Qwen3RMSNorm", "2 Qwen3MLP")
    assert f"on cpu: no layer is replaced, {' on their own code, '.join(layers)} on their own code" in done.stderr


@pytest.mark.slow  # a process that imports transformers
@pytest.mark.parametrize(("left_out", "op"), [("activation", "rmsnorm"), ("norm", "silu_and_mul")])
def test_a_family_of_which_nothing_is_used_is_not_imported(left_out, op, tmp_path):
    code = f"""
        import sys
        net = model("qwen3")
        print(set(sgljit_transformers.enable(net).values()), "sgljit_{left_out}" in sys.modules)
        generate(net, prompt())
        print("sgljit_{left_out}" in sys.modules)
    """
    done = run(code, tmp_path, SGLJIT_ENGINES=f"-{left_out},-rope")
    assert done.stdout == f"{{'{op}'}} False\nFalse\n", done.stderr


@pytest.mark.slow  # a process that imports transformers
def test_strict_raises_where_an_op_cannot_be_built(tmp_path):
    done = run(_FAILING, tmp_path, SGLJIT_JIT="error", SGLJIT_ENGINES="strict")
    assert done.returncode == 1
    assert "CompileForbiddenError" in done.stderr


_CAPTURED = """
    from sgljit_core.builds import policy
    net, other = model("llama").model.norm, model("llama").model.norm
    x = torch.randn(2, 64, dtype=torch.bfloat16)
    sgljit_transformers.enable(net)
    sgljit_transformers.enable(other)
    net.bfloat16()  # another kernel
    with torch.no_grad():
        expected = type(net).forward(net, x)
        policy.is_capturing = lambda: True  # a CUDA graph
        assert torch.equal(net(x), expected)
    print(["forward" in vars(layer) for layer in (net, other)])
"""


@pytest.mark.slow
def test_a_capture_that_may_not_build_an_op_costs_that_call_alone(tmp_path):
    done = run(_CAPTURED, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[True, True]\n"
    assert "failed, and" not in done.stderr


@pytest.mark.slow  # a process that imports transformers
def test_strict_raises_where_a_capture_may_not_build_an_op(tmp_path):
    done = run(_CAPTURED, tmp_path, SGLJIT_ENGINES="strict")
    assert done.returncode == 1
    assert "CaptureError" in done.stderr


_MOVED = """
    real, ids = model("qwen3"), prompt()
    net = model("qwen3").to("meta")
    print(len(sgljit_transformers.enable(net)), "replaced")
    net.load_state_dict(real.state_dict(), assign=True)
    net.model.rotary_emb = real.model.rotary_emb
    with torch.no_grad():
        expected = real(ids).logits
        for _ in range(3):
            torch.testing.assert_close(net(ids).logits, expected, rtol=1e-4, atol=1e-5)
    print(sum("forward" in vars(layer) for layer in net.modules()), "left")
    sgljit_transformers.disable(net)
"""


@pytest.mark.slow  # a process that imports transformers
@pytest.mark.parametrize(("jit", "left"), [("on", 13), ("error", 0)])
def test_a_model_that_moves_runs_on_the_op_if_that_can_be_built_there(tmp_path, jit, left):
    done = run(_MOVED, tmp_path, SGLJIT_JIT=jit)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"13 replaced\n{left} left\n"
    assert done.stderr.count("rmsnorm failed, and RMSNorm runs") == (jit == "error")


@pytest.mark.slow  # a process that imports transformers
def test_without_the_names_of_the_hub_all_is_the_same(tmp_path):
    done = run("print(len(sgljit_transformers.enable(model('qwen3'))))", tmp_path, USE_HUB_KERNELS="0")
    assert done.stdout == "13\n", done.stderr


def test_nothing_but_the_adapter_and_the_core_logs_and_no_logger_changes(caplog):
    caplog.set_level(logging.DEBUG)
    root = logging.getLogger()
    before = vars(root).copy(), root.handlers.copy()
    sgljit_transformers.enable(model("llama"))
    assert {record.name for record in caplog.records} == {"sgljit"}
    assert (vars(root), root.handlers) == before
