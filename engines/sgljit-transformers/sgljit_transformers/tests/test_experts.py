"""Routed experts and their choice: which layers are found, and that they compute what they computed before."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import sgljit_transformers
from sgljit_engines import report
from sgljit_transformers.experts import Experts
from sgljit_transformers.layers import match
from sgljit_transformers.routers import Router

from .tiny import model, of_type, transformers


@pytest.fixture(params=[pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


class OfExperts(nn.Module):
    """Routed experts as a model without transformers' implementations writes them, and what may be different."""

    def __init__(self, act_fn=None, turned=False, bias=False, experts=8, size=32, inner=16):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        shapes = {"gate_up_proj": (experts, 2 * inner, size), "down_proj": (experts, size, inner)}
        for name, (count, m, n) in shapes.items():
            weight = torch.randn(count, m, n, generator=generator) / n**0.5
            setattr(self, name, nn.Parameter(weight.transpose(1, 2).contiguous() if turned else weight))
            if bias:
                setattr(self, f"{name}_bias", nn.Parameter(torch.randn(count, m, generator=generator)))
        self.num_experts, self.turned = experts, turned
        if act_fn is not None:
            self.act_fn = act_fn

    def gated(self, both):
        gate, up = both.chunk(2, -1)
        return self.act_fn(gate) * up

    def product(self, x, name, expert):
        weight = getattr(self, name)[expert]
        result = x @ (weight if self.turned else weight.T)
        return result + getattr(self, f"{name}_bias")[expert] if hasattr(self, f"{name}_bias") else result

    def forward(self, hidden_states, ids, weights):
        result = torch.zeros_like(hidden_states)
        for token, expert, weight in zip(
            torch.arange(len(ids)).repeat_interleave(ids.shape[1]), ids.flatten(), weights.flatten(), strict=True
        ):
            inner = self.gated(self.product(hidden_states[token], "gate_up_proj", expert))
            result[token] += weight.to(result.dtype) * self.product(inner, "down_proj", expert)
        return result


class Clamped(OfExperts):
    alpha, limit = 1.702, 7.0

    def gated(self, both):
        gate, up = both[..., ::2].clamp(max=self.limit), both[..., 1::2].clamp(-self.limit, self.limit)
        return (up + 1) * gate * torch.sigmoid(self.alpha * gate)


class InHalves(Clamped):
    def gated(self, both):
        return super().gated(torch.stack(both.chunk(2, -1), -1).flatten(-2))


class Swapped(OfExperts):
    def gated(self, both):
        return super().gated(both.roll(both.shape[-1] // 2, -1))


class Unweighted(OfExperts):
    def forward(self, hidden_states, ids, weights):
        return super().forward(hidden_states, ids, torch.ones_like(weights))


class WeightsFirst(OfExperts):
    def forward(self, hidden_states, ids, weights):
        return super().forward(hidden_states * weights[:, :1], ids, weights)


class Renormalised(OfExperts):
    def forward(self, hidden_states, ids, weights):
        return super().forward(hidden_states, ids, weights / weights.sum(-1, keepdim=True))


class Residual(OfExperts):
    def forward(self, hidden_states, ids, weights):
        return hidden_states + super().forward(hidden_states, ids, weights)


class Wide(OfExperts):
    def forward(self, hidden_states, ids, weights):
        return super().forward(hidden_states, ids, weights).float()


class TakesMore(OfExperts):
    def forward(self, hidden_states, ids, weights, scale=1.0):
        return super().forward(hidden_states, ids, weights) * scale


class Limited(OfExperts):
    def gated(self, both):
        return super().gated(both.clamp(-100, 100))


class WithScale(OfExperts):
    def __init__(self, act_fn=None):
        super().__init__(act_fn)
        self.scale = nn.Parameter(torch.ones(1))


SILU, GELU, TANH = nn.SiLU(), nn.GELU(), nn.GELU(approximate="tanh")


@pytest.mark.parametrize(
    ("layer", "found"),
    [
        (OfExperts(SILU), Experts("silu_and_mul", False, False)),
        (OfExperts(GELU, turned=True), Experts("gelu_and_mul", False, True)),
        (OfExperts(TANH, bias=True), Experts("gelu_tanh_and_mul", False, False)),
        (OfExperts(SILU, size=16, inner=16, turned=True), Experts("silu_and_mul", False, True)),
        (Clamped(turned=True, bias=True), Experts("clamped_swiglu", True, True)),
        (InHalves(), Experts("clamped_swiglu", False, False)),
        (OfExperts(SILU).to("meta"), Experts("silu_and_mul", False, False)),
        (OfExperts(nn.ReLU()), None),
        *(
            (cls(SILU), None)
            for cls in (Swapped, Unweighted, WeightsFirst, Renormalised, Residual, TakesMore, WithScale, Limited)
        ),
        (Wide(SILU).bfloat16(), None),
    ],
    ids=str,
)
def test_what_experts_compute_decides(layer, found):
    before = dict(vars(layer))
    assert match(layer) == found
    assert vars(layer) == before


def numbers(layer, tokens, k, dtype, device, seed=0):
    """Tokens, different experts of each, and weights."""
    generator = torch.Generator().manual_seed(seed)
    experts, size = layer.gate_up_proj.shape[0], layer.gate_up_proj.shape[1 if layer.turned else 2]
    x = torch.randn(tokens, size, generator=generator)
    ids = torch.rand(tokens, experts, generator=generator).argsort(-1)[:, :k]
    weights = torch.rand(tokens, k, generator=generator)
    return x.to(device, dtype), ids.to(device), weights.to(device)


def use_of(op):
    """What the report says of an op that an enabled model has."""
    (use,) = (use for use in report() if use.op == op and use.layers)
    return use


def expected(layer, x, ids, weights):
    """The layer's own code in float64."""
    wide = layer.to("cpu", torch.float64)
    result = type(layer).forward(wide, x.double().cpu(), ids.cpu(), weights.double().cpu())
    layer.to(x.device, x.dtype)
    return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [lambda: OfExperts(SILU), lambda: Clamped(turned=True, bias=True), InHalves])
def test_few_tokens_and_many_have_the_experts_results(make, dtype, device):
    layer = make().to(device, dtype).requires_grad_(False).eval()
    with torch.no_grad(), sgljit_transformers.enabled(layer):
        for tokens, k, of_weights in (
            (1, 1, dtype),
            (1, 8, dtype),
            (2, 4, torch.float32),
            (3, 2, dtype),
            (9, 3, dtype),
        ):
            x, ids, weights = numbers(layer, tokens, k, dtype, device, tokens)
            weights = weights.to(of_weights)
            before = use_of("expert_matvec").calls
            result = layer(x, ids, weights)
            is_own = use_of("expert_matvec").calls == before
            assert not is_own or (device == "cuda" and tokens == 9)  # PyTorch's product may not take the dtype there
            wanted = expected(layer, x, ids, weights)
            assert result.dtype == dtype
            assert result.shape == x.shape
            error = (result.cpu().double() - wanted).abs().max() / wanted.abs().max()
            assert error < 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize(
    "change",
    [
        lambda x, ids, weights: (x, ids.repeat(1, 1)[:0], weights[:0]),
        lambda x, ids, weights: (x[:0], ids[:0], weights[:0]),
        lambda x, ids, weights: (x.double(), ids, weights.double()),
        lambda x, ids, weights: (x, ids, weights.double()),
        lambda x, ids, weights: (x.requires_grad_(), ids, weights),
        lambda x, ids, weights: (x.as_subclass(type("Other", (torch.Tensor,), {})), ids, weights),
    ],
    ids=["no ids", "no tokens", "float64", "weights of float64", "gradient", "subclass"],
)
def test_what_the_ops_do_not_take_is_the_layers_own_code(change):
    layer = OfExperts(SILU).requires_grad_(False).eval()
    arguments = change(*numbers(layer, 2, 2, torch.float32, "cpu"))

    def outcome(forward):
        try:
            return forward(*arguments)
        except Exception as error:  # noqa: BLE001 - the layer's own, which must be the same
            return type(error), str(error)

    with torch.set_grad_enabled(arguments[0].requires_grad):
        wanted = outcome(layer)
        with sgljit_transformers.enabled(layer):
            before = use_of("expert_matvec").own_calls
            got = outcome(layer)
            assert use_of("expert_matvec").own_calls == before + 1
    assert type(got) is type(wanted)
    assert torch.equal(got, wanted) if isinstance(wanted, torch.Tensor) else got == wanted


def test_sizes_that_the_grouped_product_refuses_leave_many_tokens_to_the_layers_own_code(device, monkeypatch):
    def refuse(*_args, **_options):
        raise RuntimeError("strides should be multiple of 16 bytes")

    monkeypatch.setattr(torch.nn.functional, "grouped_mm", refuse)
    layer = OfExperts(SILU, size=30, inner=7).to(device).requires_grad_(False).eval()
    with torch.no_grad(), sgljit_transformers.enabled(layer):
        for tokens, is_own in ((2, False), (9, True)):
            arguments = numbers(layer, tokens, 3, torch.float32, device)
            before = use_of("expert_matvec").own_calls
            torch.testing.assert_close(
                layer(*arguments).cpu().double(), expected(layer, *arguments), rtol=1e-4, atol=1e-5
            )
            assert use_of("expert_matvec").own_calls == before + is_own


def test_experts_that_got_another_activation_or_limit_compute_that():
    layer = OfExperts(SILU).requires_grad_(False).eval()
    clamped = Clamped().requires_grad_(False).eval()
    with torch.no_grad(), sgljit_transformers.enabled(layer), sgljit_transformers.enabled(clamped):
        layer.act_fn, clamped.limit = GELU, 0.25
        for one in (layer, clamped):
            arguments = numbers(one, 2, 2, torch.float32, "cpu")
            torch.testing.assert_close(one(*arguments).double(), expected(one, *arguments), rtol=1e-4, atol=1e-5)


def test_experts_of_several_devices_run_their_own_code():
    """Their ids may be of others' experts, and so of no matrix."""
    layer = OfExperts(SILU).requires_grad_(False).eval()
    with torch.no_grad(), sgljit_transformers.enabled(layer):
        layer._is_expert_parallel = True
        before = use_of("expert_matvec").own_calls
        layer(*numbers(layer, 2, 2, torch.float32, "cpu"))
        assert use_of("expert_matvec").own_calls == before + 1


@pytest.mark.parametrize(
    ("left_out", "why"),
    [("activation", "it needs silu_and_mul: switched off"), ("moe.moe_sum", "it needs moe_sum: switched off")],
)
def test_without_an_op_that_they_need_experts_run_their_own_code_and_the_report_says_so(left_out, why):
    net = model("qwen3_moe")
    assert "expert_matvec" not in sgljit_transformers.enable(net, ops=f"-{left_out}").values()
    assert any(use.op == "expert_matvec" and use.why == why for use in report())


class Choice(nn.Module):
    """A router as models write it, and what may be different about one."""

    def __init__(self, experts=16, size=32, k=4, bias=False):
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.weight = nn.Parameter(torch.randn(experts, size, generator=generator))
        self.bias = nn.Parameter(torch.randn(experts, generator=generator)) if bias else None
        self.top_k = k

    def scores(self, gates):
        return gates.float().softmax(-1)

    def forward(self, hidden_states):
        gates = nn.functional.linear(hidden_states, self.weight, self.bias)
        weights, ids = self.scores(gates).topk(self.top_k, dim=-1)
        return gates, weights.to(gates.dtype), ids


class OfTheChosen(Choice):
    def forward(self, hidden_states):
        gates = nn.functional.linear(hidden_states, self.weight, self.bias)
        chosen, ids = gates.topk(self.top_k, dim=-1)
        return gates, chosen.softmax(-1), ids


class InFloat32(Choice):
    def forward(self, hidden_states):
        gates, _, ids = super().forward(hidden_states)
        return gates, self.scores(gates).gather(1, ids), ids


class Sigmoid(Choice):
    def scores(self, gates):
        return gates.float().sigmoid()


class Worst(Choice):
    def scores(self, gates):
        return (-gates.float()).softmax(-1)


class Scaled(OfTheChosen):
    def forward(self, hidden_states):
        gates, weights, ids = super().forward(hidden_states)
        return gates, 2 * weights, ids


class Pair(Choice):
    def forward(self, hidden_states):
        return super().forward(hidden_states)[1:]


class Shifted(Choice):
    """Its bias is for its input."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.ones(32))

    def forward(self, hidden_states):
        gates = nn.functional.linear(hidden_states + self.bias, self.weight)
        weights, ids = self.scores(gates).topk(self.top_k, dim=-1)
        return gates, weights, ids


class BiasFirst(Choice):
    def __init__(self):
        super().__init__(bias=True)
        weight = self.weight
        del self.weight
        self.weight = weight


@pytest.mark.parametrize(
    ("layer", "found"),
    [
        (Choice(), Router(renormalize=False, is_wide=False)),
        (Choice(bias=True), Router(renormalize=False, is_wide=False)),
        (OfTheChosen(bias=True), Router(renormalize=True, is_wide=False)),
        (InFloat32(), Router(renormalize=False, is_wide=True)),
        (OfTheChosen(k=16), Router(renormalize=True, is_wide=False)),
        (Choice(k=16), Router(renormalize=False, is_wide=False)),
        (Choice(k=1, experts=1), Router(renormalize=True, is_wide=False)),
        (BiasFirst(), Router(renormalize=False, is_wide=False)),
        (Choice(k=40, experts=64), None),
        *((cls(), None) for cls in (Sigmoid, Worst, Scaled, Pair, Shifted)),
    ],
    ids=str,
)
def test_what_a_router_computes_decides(layer, found):
    assert match(layer) == found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [Choice, lambda: OfTheChosen(bias=True), InFloat32])
def test_the_choice_of_experts_is_the_models(make, dtype, device):
    layer = make().to(device, dtype).requires_grad_(False).eval()
    x = torch.randn(33, 32, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    with torch.no_grad():
        gates, weights, ids = layer(x)
        with sgljit_transformers.enabled(layer):
            results = layer(x)
    assert [one.dtype for one in results] == [gates.dtype, weights.dtype, ids.dtype]
    assert torch.equal(results[0], gates)
    assert torch.equal(gates.gather(1, results[2]), gates.gather(1, ids)), "of equal gates either may be chosen"
    torch.testing.assert_close(results[1], weights, rtol=2 * torch.finfo(weights.dtype).eps + 1e-5, atol=0)


@pytest.mark.parametrize("cls", [Choice, OfTheChosen])
def test_a_router_of_all_experts_that_gets_a_lower_top_k_computes_by_that(cls):
    layer = cls(k=16).requires_grad_(False).eval()
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), sgljit_transformers.enabled(layer):
        layer.top_k = 3
        for got, wanted in zip(layer(x), cls.forward(layer, x), strict=True):
            torch.testing.assert_close(got, wanted)


def test_a_router_whose_setting_changed_computes_by_that():
    settings = transformers.AutoConfig.for_model("qwen3_moe", num_experts=16, num_experts_per_tok=4, hidden_size=32)
    layer = transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeTopKRouter(settings).requires_grad_(False).eval()
    layer.weight.normal_(generator=torch.Generator().manual_seed(0))
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), sgljit_transformers.enabled(layer):
        layer.norm_topk_prob = not layer.norm_topk_prob
        for got, wanted in zip(layer(x), type(layer).forward(layer, x), strict=True):
            assert torch.equal(got, wanted)


@pytest.mark.parametrize("name", ["mixtral", "olmoe", "phimoe", "qwen2_moe", "glm4_moe", "minimax_m2", "qwen3_next"])
def test_the_experts_of_many_models_run_on_ops(name):
    with torch.device("meta"):
        net = of_type(name)
    (layer, *_) = (layer for layer in net.modules() if type(layer).__name__.endswith("Experts"))
    assert match(layer) == Experts("silu_and_mul", False, False)


def test_equal_gates_are_no_disagreement(monkeypatch):
    """``SGLJIT_SHADOW`` compares the gates of the chosen: PyTorch takes any of equal ones, the op the first."""
    monkeypatch.setenv("SGLJIT_SHADOW", "1")
    layer = Choice().requires_grad_(False).eval()
    layer.weight.zero_()
    with torch.no_grad(), sgljit_transformers.enabled(layer):
        layer(torch.ones(3, 32))
        assert [use.worst <= 1 for use in report() if use.op == "topk_softmax" and use.compared] == [True]
    assert "topk_softmax" not in sgljit_transformers.adapter.ADAPTER.lost


@pytest.mark.parametrize("tokens", [1, 4])
def test_few_tokens_are_four_calls_of_ops_and_no_other(tokens):
    layer = OfExperts(SILU).requires_grad_(False).eval()
    with torch.no_grad(), sgljit_transformers.enabled(layer):
        x, ids, weights = numbers(layer, tokens, 2, torch.float32, "cpu")
        arguments = x, ids.contiguous(), weights
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            layer(*arguments)
    free = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::contiguous"}
    free |= {"aten::transpose", "aten::view", "aten::as_strided", "aten::to", "aten::reshape"}
    called = {event.key: event.count for event in profile.key_averages()}
    assert not called.keys() - free
