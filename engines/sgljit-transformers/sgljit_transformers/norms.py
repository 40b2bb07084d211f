"""Which layers compute RMSNorm, and how do they run on an op?"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sgljit_core import ops
from sgljit_core.errors import SgljitError
from sgljit_engines import Use
from sgljit_engines.kernels import try_rows

from .adapter import ADAPTER
from .seams import DTYPES, NO_RULE, NOT_TAKEN, Forward, GiveUp, Op, own_code
from .trials import plain, takes, tried, without_parts

__all__ = ["Norm", "match"]

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
    family = "norm"
    needs = frozenset[str]()

    def weight(self, layer: Any) -> torch.Tensor | None:
        return plain(getattr(layer, "weight", None))

    def kind(self, layer: Any) -> tuple[object, ...]:
        weight = self.weight(layer)
        return () if weight is None else (weight.shape[0],)

    def attempt(self, layer: Any) -> None:
        weight = tried(self.weight(layer))
        if weight is None:
            return
        op, size = getattr(ops[self.family], self.op), weight.shape[0]
        try_rows(lambda rows: op(weight.new_ones(rows, size), weight, None, 1e-6), size, weight.device.type)

    def forward(self, layer: Any, in_graphs: bool, give_up: GiveUp, use: Use) -> Forward:
        op = getattr(ops[self.family], self.op)
        forward = _norm(op, self.eps_name, in_graphs, give_up, use)
        return _compared(self.op, forward, functools.partial(give_up, None)) if ADAPTER.shadow else forward


def match(layer: nn.Module) -> Norm | None:
    """Only what has one weight [hidden], an eps and a ``forward`` of one argument is looked at more closely."""
    parameters = dict(layer.named_parameters())
    weight = parameters.pop("weight", None)
    eps_name = next((name for name in _EPS_NAMES if isinstance(getattr(layer, name, None), float)), None)
    if weight is None or eps_name is None or parameters or [*layer.buffers(), *layer.children()]:
        return None
    if weight.dim() != 1 or not weight.dtype.is_floating_point or not takes(1, type(layer).forward):
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


def _results(
    layer: nn.Module, size: int, dtype: torch.dtype, eps: float
) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
    """The output of the layer's own code, the input, and the weight that it had: all on the CPU."""
    generator = torch.Generator().manual_seed(0)
    # Rows of two magnitudes: in the small ones eps counts as much as the values.
    scales = torch.tensor([1.0, eps**0.5]).reshape(1, 2, 1)
    x = (torch.randn(2, 2, size, generator=generator) * scales).to(dtype)
    weight = torch.empty(size).uniform_(0.5, 1.5, generator=generator).to(dtype)
    bare = without_parts(layer)
    bare.weight = nn.Parameter(weight, requires_grad=False)
    try:
        with torch.no_grad():
            return type(bare).forward(bare, x), x, weight
    except Exception:  # noqa: BLE001 - the code of a stranger's layer: whatever it cannot do, it is not replaced
        return None, x, weight


def _norm(op: Op, eps_name: str, in_graphs: bool, give_up: GiveUp, use: Use) -> Forward:
    is_grad_enabled, plain, empty_like = torch.is_grad_enabled, torch.Tensor, torch.empty_like
    is_compiling = torch.compiler.is_compiling

    def forward(self: Any, hidden_states: torch.Tensor) -> Any:
        weight = self.weight
        dtype = hidden_states.dtype
        if (
            is_grad_enabled()
            or self.training
            or (not in_graphs and is_compiling())
            or type(hidden_states) is not plain
            or dtype is not weight.dtype
            or dtype not in DTYPES
        ):
            return own_code(self, use, hidden_states)
        try:
            x = hidden_states
            if not x.is_contiguous():
                x = x.flatten(0, -2)  # a copy only where tokens are at more than one stride
                if x.stride(-1) != 1:
                    return own_code(self, use, hidden_states)
            out = empty_like(x)
            op(x, weight, out, getattr(self, eps_name))
        except NOT_TAKEN:
            return own_code(self, use, hidden_states)
        except (SgljitError, OSError) as error:
            give_up(self, op.__name__, error)
            return own_code(self, use, hidden_states)
        except NO_RULE:
            return own_code(self, use, hidden_states)
        if not in_graphs or not is_compiling():
            use.calls += 1
        return out if x is hidden_states else out.view(hidden_states.shape)

    return forward


def _compared(op: str, forward: Forward, lose: Callable[[str, Exception], None]) -> Forward:
    """A ``forward`` of which ``SGLJIT_SHADOW`` compares some calls."""

    def seam(_theirs: Forward, self: Any, hidden_states: torch.Tensor) -> Any:
        return forward(self, hidden_states)

    shadow: Any = ADAPTER.shadowed(op, seam, lose=lose)
    is_compiling, numbers, lost = torch.compiler.is_compiling, shadow.numbers, shadow.lost

    def compared(self: Any, hidden_states: torch.Tensor) -> Any:
        if is_compiling() or ((number := next(numbers)) < shadow.due and not lost):
            return forward(self, hidden_states)
        return shadow.compared(number, type(self).forward, self, hidden_states)

    return compared
