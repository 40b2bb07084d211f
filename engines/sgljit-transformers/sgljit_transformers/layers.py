"""Which op computes what a layer computes?

The layer's own code answers: it runs once on a few numbers, with a weight by which the ops differ, or with stand-ins
for its projections. For attention it is the function that rotates queries and keys. The results are compared with each
op's formula in float64. A table of class names would miss the model of tomorrow, and would trust a name: transformers
calls ``weight``, ``1 + weight`` and no weight at all RMSNorm. A layer that computes something else stays as it is.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import nn

__all__ = ["GatedMLP", "Norm", "Rotation", "match"]

_EPS_NAMES = ("variance_epsilon", "eps")
_FORMULAS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rmsnorm": lambda weight: weight,
    "gemma_rmsnorm": lambda weight: 1 + weight,
}


@dataclass(frozen=True)
class Norm:
    """A layer that computes RMSNorm.

    Attributes:
        op: the op of the family ``norm`` that computes the same.
        eps_name: the layer's attribute that holds what is added to the mean of squares.
    """

    op: str
    eps_name: str

    @property
    def family(self) -> str:
        return "norm"


@dataclass(frozen=True)
class GatedMLP:
    """A layer that computes ``down_proj(act_fn(gate_proj(x)) * up_proj(x))``, whatever its projections are.

    Attributes:
        op: the op of the family ``activation`` that computes what the down projection gets.
    """

    op: str

    @property
    def family(self) -> str:
        return "activation"


@dataclass(frozen=True)
class Rotation:
    """A layer that rotates queries and keys by a function of its module, which its ``forward`` calls.

    Attributes:
        name: the function's global name there. It takes (q, k, cos, sin) and returns both rotated.
        takes_parts: whether the function rotates the first elements of heads alone, where there are fewer angles: only
            the model knows whether there are.
    """

    name: str
    takes_parts: bool = False
    op = "apply_rotary_pos_emb"
    family = "rope"


Computation = Norm | GatedMLP | Rotation


def match(layer: nn.Module) -> Computation | None:
    """The computation of a layer, if there is an op for it; else None.

    Args:
        layer: any module, on any device, also meta. Neither it nor the global random state changes.
    """
    return _norm(layer) or _gated_mlp(layer) or _rotation(layer)


def _norm(layer: nn.Module) -> Norm | None:
    """Only what has one weight [hidden], an eps and a ``forward`` of one argument is looked at more closely."""
    parameters = dict(layer.named_parameters())
    weight = parameters.pop("weight", None)
    eps_name = next((name for name in _EPS_NAMES if isinstance(getattr(layer, name, None), float)), None)
    if weight is None or eps_name is None or parameters or [*layer.buffers(), *layer.children()]:
        return None
    if weight.dim() != 1 or not weight.dtype.is_floating_point or not _takes_one(type(layer).forward):
        return None
    eps = float(getattr(layer, eps_name))
    if not eps >= 0:  # NaN is not, either
        return None
    candidates = set(_FORMULAS)
    for dtype in {torch.float32, weight.dtype}:
        own, x, w = _results(layer, weight.shape[0], dtype, eps)
        if own is None or own.dtype != dtype or own.shape != x.shape:
            return None
        wide = x.double()
        normed = wide / torch.sqrt(wide.square().mean(-1, keepdim=True) + eps)
        tolerance = 4 * torch.finfo(dtype).eps  # a layer may round twice where the op rounds once
        candidates = {
            op
            for op in candidates
            if torch.allclose(own.double(), normed * _FORMULAS[op](w.double()), rtol=tolerance, atol=tolerance)
        }
    return Norm(candidates.pop(), eps_name) if len(candidates) == 1 else None


_PARTS = ("gate_proj", "up_proj", "down_proj")
_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu_and_mul": torch.nn.functional.silu,
    "gelu_and_mul": torch.nn.functional.gelu,
    "gelu_tanh_and_mul": functools.partial(torch.nn.functional.gelu, approximate="tanh"),
}


class _StandIn(nn.Module):
    """It takes a projection's place: keeps what it is given, and gives what it is told."""

    def __init__(self, result: torch.Tensor) -> None:
        super().__init__()
        self.result = result
        self.given: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.given.append(x)
        return self.result


def _gated_mlp(layer: nn.Module) -> GatedMLP | None:
    """Only what has three projections, an activation, and a ``forward`` of one argument is looked at more closely."""
    children = dict(layer.named_children())
    if children.keys() != {*_PARTS, "act_fn"} or not _takes_one(type(layer).forward):
        return None
    activation = children["act_fn"]
    own = [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]
    if [*own, *activation.parameters(), *activation.buffers(), *activation.children()]:
        return None
    candidates = set(_ACTIVATIONS)
    for dtype in (torch.float32, torch.bfloat16):
        generator = torch.Generator().manual_seed(0)
        x, gate, up, down = ((torch.randn(2, 3, 40, generator=generator) * 8).to(dtype) for _ in range(4))
        bare = _without_parts(layer)
        for part, result in zip(_PARTS, (gate, up, down), strict=True):
            bare.add_module(part, _StandIn(result))
        bare.add_module("act_fn", _without_parts(activation))
        given: list[torch.Tensor] = []
        try:
            with torch.no_grad():
                result = type(bare).forward(bare, x)
            ((of_gate,), (of_up,), given) = (getattr(bare, part).given for part in _PARTS)
            (actual,) = given
        except Exception:  # noqa: BLE001 - the code of a stranger's layer: whatever it cannot do, it is not replaced
            return None
        if not (result is down and of_gate is x and of_up is x) or actual.dtype != dtype or actual.shape != gate.shape:
            return None
        tolerance = 4 * torch.finfo(dtype).eps * (gate * up).abs().max().double()
        candidates = {
            op
            for op in candidates
            if ((actual.double() - _ACTIVATIONS[op](gate.double()) * up.double()).abs() <= tolerance).all()
        }
    return GatedMLP(candidates.pop()) if len(candidates) == 1 else None


_ROTATED = ("q", "k", "cos", "sin")


def _rotation(layer: nn.Module) -> Rotation | None:
    """Only a ``forward`` that names one function of (q, k, cos, sin) is looked at more closely."""
    forward = type(layer).forward
    if not isinstance(forward, FunctionType):
        return None
    named = {name: forward.__globals__.get(name) for name in forward.__code__.co_names}
    functions = {name: one for name, one in named.items() if callable(one) and _begins_with(one, _ROTATED)}
    if len(functions) != 1:  # of two, only the config knows which runs
        return None
    ((name, function),) = functions.items()
    return Rotation(name, takes_parts=_rotates(function, rotated=4)) if _rotates(function) else None


def _begins_with(function: Callable[..., object], names: tuple[str, ...]) -> bool:
    """Whether these are the first parameters of a function, or of one that the package ``kernels`` made a layer of."""
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        parameters = [name for name in inspect.signature(called).parameters if name != "self"]
    except (TypeError, ValueError):  # what is not written in Python may have none
        return False
    return tuple(parameters[: len(names)]) == names


def _rotates(function: Callable[..., Any], rotated: int = 8) -> bool:
    """Whether a function computes what the op does, of the first elements of heads of [batch, heads, tokens, 8]."""
    for dtype in (torch.float32, torch.bfloat16):
        generator = torch.Generator().manual_seed(0)
        # Both halves of cosines and sines differ, and the tokens of a batch have angles of their own.
        q, k = (torch.randn(2, heads, 3, 8, generator=generator).to(dtype) for heads in (4, 2))
        cos, sin = (torch.randn(2, 3, rotated, generator=generator).to(dtype) for _ in range(2))
        try:
            with torch.no_grad():
                results = tuple(function(q, k, cos, sin))
            pairs = list(zip(results, (q, k), strict=True))
        except Exception:  # noqa: BLE001 - a stranger's function: whatever it cannot do, it is not replaced
            return False
        for result, x in pairs:
            wide, half = x.double()[..., :rotated], rotated // 2
            turned = torch.cat((-wide[..., half:], wide[..., :half]), -1)
            wanted = wide * cos.double()[:, None] + turned * sin.double()[:, None]
            wanted = torch.cat((wanted, x.double()[..., rotated:]), -1)
            tolerance = 4 * torch.finfo(dtype).eps * float(wanted.abs().max())
            if result.dtype != dtype or result.shape != x.shape or result is x:
                return False
            if not ((result.double() - wanted).abs() <= tolerance).all():
                return False
    return True


def _takes_one(forward: Callable[..., object]) -> bool:
    """Whether a ``forward`` takes one argument beside ``self``."""
    kinds = [parameter.kind for parameter in inspect.signature(forward).parameters.values()]
    return kinds == [inspect.Parameter.POSITIONAL_OR_KEYWORD] * 2


def _results(
    layer: nn.Module, size: int, dtype: torch.dtype, eps: float
) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
    """The output of the layer's own code, the input, and the weight that it had: all on the CPU."""
    generator = torch.Generator().manual_seed(0)
    # Rows of two magnitudes: in the small ones eps counts as much as the values.
    scales = torch.tensor([1.0, eps**0.5]).reshape(1, 2, 1)
    x = (torch.randn(2, 2, size, generator=generator) * scales).to(dtype)
    weight = torch.empty(size).uniform_(0.5, 1.5, generator=generator).to(dtype)
    bare = _without_parts(layer)
    bare.weight = nn.Parameter(weight, requires_grad=False)
    try:
        with torch.no_grad():
            return type(bare).forward(bare, x), x, weight
    except Exception:  # noqa: BLE001 - the code of a stranger's layer: whatever it cannot do, it is not replaced
        return None, x, weight


def _without_parts(layer: nn.Module) -> nn.Module:
    """A layer of the same class and attributes, without parameters, parts, hooks, or a ``forward`` of its own."""
    bare: nn.Module = object.__new__(type(layer))
    nn.Module.__init__(bare)
    for name, value in vars(layer).items():
        if name not in vars(bare) and name != "forward":
            setattr(bare, name, value)
    return bare
