"""A layer is tried, not believed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sgljit_transformers.layers import match
from sgljit_transformers.rotations import Rotation

from .tiny import op_of, transformers


class Norm(nn.Module):
    """An RMSNorm as models write it, and what may be different about one."""

    def __init__(self, size=32, eps=1e-6, dtype=torch.float32):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, dtype=dtype))
        self.eps = eps

    def scale(self):
        return self.weight.float()

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps) * self.scale()).type_as(x)


class OnePlus(Norm):
    def scale(self):
        return 1 + self.weight.float()


class TwoPlus(Norm):
    def scale(self):
        return 2 + self.weight.float()


class Unweighted(Norm):
    def scale(self):
        return 1.0


class EpsOutside(Norm):
    def forward(self, x):
        return x / (x.square().mean(-1, keepdim=True).sqrt() + self.eps) * self.weight


class Mean(Norm):
    def forward(self, x):
        return super().forward(x - x.mean(-1, keepdim=True))


class Wide(Norm):
    def forward(self, x):
        return super().forward(x.float())


class InGroups(Norm):
    group_size = 8

    def forward(self, x):
        grouped = x.unflatten(-1, (-1, self.group_size)).float()
        grouped = grouped * torch.rsqrt(grouped.square().mean(-1, keepdim=True) + self.eps)
        return (grouped.flatten(-2) * self.weight).type_as(x)


class Gated(Norm):
    def forward(self, x, gate=None):
        return super().forward(x)


class Raises(Norm):
    def forward(self, x):
        raise NotImplementedError


class WithBias(Norm):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_formula_decides(dtype, device):
    assert op_of(Norm(dtype=dtype).to(device)) == "rmsnorm"
    assert op_of(OnePlus(dtype=dtype).to(device)) == "gemma_rmsnorm"
    assert op_of(nn.RMSNorm(32, eps=1e-6, dtype=dtype).to(device)) == "rmsnorm"


@pytest.mark.parametrize(
    "make",
    [
        TwoPlus,
        Unweighted,
        EpsOutside,
        Mean,
        InGroups,
        Gated,
        Raises,
        WithBias,
        lambda: Wide(dtype=torch.bfloat16),
        lambda: Norm(eps=-1e-6),
        lambda: Norm(eps=float("nan")),
    ],
)
def test_what_computes_something_else_is_left_alone(make):
    assert op_of(make()) is None


@pytest.mark.parametrize(
    "make", [lambda: nn.LayerNorm(32), lambda: nn.Linear(4, 4), lambda: nn.RMSNorm((4, 8), eps=1e-6), nn.Identity]
)
def test_other_layers_are_left_alone(make):
    assert op_of(make()) is None


class MLP(nn.Module):
    """A gated MLP as models write it, and what may be different about one."""

    def __init__(self, act_fn=None):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(8, 12), nn.Linear(8, 12)
        self.down_proj, self.act_fn = nn.Linear(12, 8), act_fn or nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Swapped(MLP):
    def forward(self, x):
        return self.down_proj(self.gate_proj(x) * self.act_fn(self.up_proj(x)))


class Limited(MLP):
    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x).clamp(max=7)) * self.up_proj(x))


class Residual(MLP):
    def forward(self, x):
        return x + super().forward(x)


class Twice(MLP):
    def forward(self, x):
        return super().forward(2 * x)


class WithScale(MLP):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


class WithAnotherPart(MLP):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(12)


@pytest.mark.parametrize(
    ("activation", "op"),
    [
        *((name, "silu_and_mul") for name in ("silu", "swish")),
        *((name, "gelu_and_mul") for name in ("gelu", "gelu_python")),
        *((f"gelu_{name}", "gelu_tanh_and_mul") for name in ("pytorch_tanh", "python_tanh", "new", "fast", "accurate")),
        *((name, None) for name in ("gelu_10", "quick_gelu", "mish", "relu", "relu2", "linear", "sigmoid", "tanh")),
        *((name, None) for name in ("prelu", "hardswish", "leaky_relu", "laplace")),
    ],
)
def test_the_activation_of_an_mlp_decides(activation, op):
    layer = MLP(transformers.activations.ACT2FN[activation])
    assert op_of(layer) == op
    assert op_of(layer.to("meta")) == op


@pytest.mark.parametrize("make", [Swapped, Limited, Residual, Twice, WithScale, WithAnotherPart])
def test_an_mlp_that_computes_something_else_is_left_alone(make):
    assert op_of(make()) is None


def test_looking_at_an_mlp_runs_no_hook_and_no_projection():
    layer, called = MLP(), []
    for module in layer.modules():
        module.register_forward_hook(lambda *_: called.append(1))
    before = {module: dict(vars(module)) for module in layer.modules()}
    assert op_of(layer) == "silu_and_mul"
    assert {module: vars(module) for module in layer.modules()} == before
    assert not called


def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def rotated(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def rotated_back(q, k, cos, sin):
    return rotated(q, k, cos, -sin)


def of_the_first_half(q, k, cos, sin):
    half = cos.shape[-1] // 2
    return rotated(q, k, torch.cat((cos[..., :half],) * 2, -1), torch.cat((sin[..., :half],) * 2, -1))


def rotated_by_pairs(q, k, cos, sin):
    return rotated(q, k, torch.cat((cos,) * 2, -1), torch.cat((sin,) * 2, -1))


def rotated_back_by_pairs(q, k, cos, sin):
    return rotated_by_pairs(q, k, cos, -sin)


def neighbours_by_pairs(q, k, cos, sin):
    (q, k), size = (torch.cat((x[..., ::2], x[..., 1::2]), -1) for x in (q, k)), q.shape[-1]
    return tuple(x.unflatten(-1, (2, size // 2)).mT.flatten(-2) for x in rotated_by_pairs(q, k, cos, sin))


def parts_by_pairs(q, k, cos, sin):
    return of_the_first_elements(q, k, torch.cat((cos,) * 2, -1), torch.cat((sin,) * 2, -1))


def queries_alone(q, k, cos, sin):
    return rotated(q, k, cos, sin)[0], k


def keys_without_result(q, k, cos, sin):
    return rotated(q, k, cos, sin)[0], None


def wide(q, k, cos, sin):
    return rotated(q.float(), k.float(), cos, sin)


@pytest.mark.parametrize(
    ("forward", "op"),
    [
        (lambda self, *heads: rotated(*heads), "apply_rotary_pos_emb"),
        (lambda self, *heads: rotated_back(*heads), None),
        (lambda self, *heads: of_the_first_half(*heads), None),
        (lambda self, *heads: rotated_by_pairs(*heads), "apply_rotary_pos_emb"),
        (lambda self, *heads: rotated_back_by_pairs(*heads), None),
        (lambda self, *heads: neighbours_by_pairs(*heads), None),
        (lambda self, *heads: queries_alone(*heads), None),
        (lambda self, *heads: keys_without_result(*heads), None),
        (lambda self, *heads: wide(*heads), None),
        (lambda self, q, *others: rotate_half(q), None),
        (lambda self, *heads: (rotated if self.training else rotated_back)(*heads), None),  # who knows which of the two
    ],
)
def test_the_function_that_a_forward_names_decides(forward, op):
    assert op_of(type("Attention", (nn.Module,), {"forward": forward})()) == op


def of_the_first_elements(q, k, cos, sin):
    size = cos.shape[-1]
    parts = rotated(q[..., :size], k[..., :size], cos, sin)
    return tuple(torch.cat((part, x[..., size:]), -1) for part, x in zip(parts, (q, k), strict=True))


def zeros_behind(q, k, cos, sin):
    parts = of_the_first_elements(q, k, cos, sin)
    return tuple(torch.cat((x[..., : cos.shape[-1]], 0 * x[..., cos.shape[-1] :]), -1) for x in parts)


@pytest.mark.parametrize(
    ("function", "takes_parts", "halves"),
    [
        (rotated, False, False),
        (of_the_first_elements, True, False),
        (zeros_behind, False, False),
        (rotated_by_pairs, False, True),
        (parts_by_pairs, True, True),
    ],
)
def test_a_function_may_rotate_a_part_of_each_head_and_have_an_angle_for_a_pair(
    function, takes_parts, halves, monkeypatch
):
    monkeypatch.setitem(globals(), "rotated_by", function)
    layer = type("Attention", (nn.Module,), {"forward": lambda self, *heads: rotated_by(*heads)})()  # noqa: F821
    assert match(layer) == Rotation("rotated_by", takes_parts, halves)


def test_looking_at_a_layer_changes_nothing():
    layer, called = Norm(), []
    layer.register_forward_hook(lambda *_: called.append(1))
    before, weight, state = dict(vars(layer)), layer.weight, torch.get_rng_state()
    assert op_of(layer) == "rmsnorm"
    assert vars(layer) == before
    assert layer.weight is weight
    assert torch.equal(torch.get_rng_state(), state)
    assert not called
