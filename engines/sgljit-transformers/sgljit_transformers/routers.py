"""Which layers choose the experts of each token, and how do they do so by an op?"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sgljit_core import ops
from sgljit_engines import Use
from sgljit_engines.kernels import try_rows

from .adapter import ADAPTER
from .seams import DTYPES, Forward, GiveUp, Op, by_ops, count_own, own_code
from .trials import plain, takes, tried, without_parts

__all__ = ["Router", "match"]

_MOST = 32  # experts of a token that the op takes
_RENORMALIZES = "norm_topk_prob"  # the name that models have for it; it may change while a model is enabled


@dataclass(frozen=True)
class Router:
    """A layer that gives the gates of all experts, and of each token's best the weights and the numbers.

    The weights are a softmax of the gates.

    Attributes:
        renormalize: whether the weights of a token are divided by their sum.
        is_wide: whether they are float32 for an input of any dtype; else they have its dtype.
    """

    renormalize: bool
    is_wide: bool
    op = "topk_softmax"
    family = "moe"
    needs = frozenset[str]()

    def weight(self, layer: Any) -> torch.Tensor | None:
        return plain(layer.weight)

    def kind(self, layer: Any) -> tuple[object, ...]:
        weight = self.weight(layer)
        return () if weight is None else (f"{layer.top_k} of {weight.shape[0]}",)

    def attempt(self, layer: Any) -> None:
        weight = tried(self.weight(layer))
        if weight is None:
            return
        op, experts, k = getattr(ops[self.family], self.op), weight.shape[0], layer.top_k

        def choose(tokens: int) -> None:
            scores = weight.new_empty(tokens, k, dtype=torch.float32 if self.is_wide else None)
            op(scores, weight.new_empty(tokens, k, dtype=torch.int64), weight.new_zeros(tokens, experts))

        try_rows(choose, experts, weight.device.type)

    def forward(self, layer: Any, _in_graphs: bool, give_up: GiveUp, use: Use) -> Forward:
        return _choosing(getattr(ops[self.family], self.op), self, layer, give_up, use)


def match(layer: nn.Module) -> Router | None:
    """Only what has one weight [experts, hidden], a bias at most, and ``top_k`` is looked at more closely."""
    parameters = dict(layer.named_parameters())
    weight, k = parameters.get("weight"), getattr(layer, "top_k", None)
    if weight is None or not parameters.keys() <= {"weight", "bias"} or not isinstance(k, int):
        return None
    if [*layer.buffers(), *layer.children()] or not takes(1, type(layer).forward):
        return None
    if weight.dim() != 2 or not weight.dtype.is_floating_point or not 0 < k <= min(_MOST, weight.shape[0]):
        return None
    # The weights of all experts have the sum 1 anyway, but a layer may get a lower `top_k` while it is enabled.
    k = min(k, max(1, len(weight) - 1))
    candidates = {Router(renormalize, is_wide) for renormalize in (False, True) for is_wide in (False, True)}
    for dtype in (torch.float32, torch.bfloat16):
        candidates &= _agreeing(layer, candidates, dtype, k)
    if len(candidates) == 2 and len(weight) == 1:  # one expert: its weight is 1 anyway
        candidates = {one for one in candidates if one.renormalize}
    return candidates.pop() if len(candidates) == 1 else None


def _agreeing(layer: nn.Module, candidates: set[Router], dtype: torch.dtype, k: int) -> set[Router]:
    """The candidates whose formula, in float64, gives the results of the layer's own code."""
    generator = torch.Generator().manual_seed(0)
    bare: Any = without_parts(layer).eval()
    bare.top_k = k
    for name, parameter in layer.named_parameters():
        numbers = torch.randn(parameter.shape, generator=generator)
        setattr(bare, name, nn.Parameter(numbers.to(dtype), requires_grad=False))
    x = (torch.randn(6, bare.weight.shape[1], generator=generator) * 3 / bare.weight.shape[1] ** 0.5).to(dtype)
    try:
        with torch.no_grad():
            gates, weights, ids = type(bare).forward(bare, x.clone())
            parameters = {name: parameter.double() for name, parameter in bare.named_parameters()}
            wide = torch.nn.functional.linear(x.double(), **parameters)
    except Exception:  # noqa: BLE001 - the code of a stranger's layer: whatever it cannot do, it is not replaced
        return set()
    if not all(isinstance(one, torch.Tensor) for one in (gates, weights, ids)):
        return set()
    tolerance = 4 * torch.finfo(dtype).eps * float(wide.abs().max())
    if gates.dtype != dtype or gates.shape != wide.shape or ((gates.double() - wide).abs() > tolerance).any():
        return set()
    if ids.dtype != torch.int64 or not weights.shape == ids.shape == (len(x), k):
        return set()
    chosen = gates.double().gather(1, ids)
    if not torch.equal(chosen, gates.double().topk(k).values):  # of two equal gates either may come first
        return set()
    scores = gates.double().softmax(-1).gather(1, ids)
    wanted = {False: scores, True: scores / scores.sum(-1, keepdim=True)}
    # The difference of two gates is rounded before its exponential.
    tolerance = 4 * torch.finfo(weights.dtype).eps + 64 * torch.finfo(torch.float32).eps
    return {
        one
        for one in candidates
        if weights.dtype == (torch.float32 if one.is_wide else dtype)
        and torch.allclose(weights.double(), wanted[one.renormalize], rtol=tolerance, atol=0)
    }


def _chosen(run: Callable[..., Any], *args: Any) -> tuple[torch.Tensor, ...]:
    """The result of a call for a comparison: the gates of the chosen, as either of two equal ones may be chosen."""
    gates, scores, ids = run(*args)
    return gates, scores, gates.gather(1, ids)


def _choosing(op: Op, of: Router, layer: Any, give_up: GiveUp, use: Use) -> Forward:
    is_grad_enabled, plain, parameter = torch.is_grad_enabled, torch.Tensor, nn.Parameter
    is_compiling, linear, int64 = torch.compiler.is_compiling, torch.nn.functional.linear, torch.int64
    own, setting, renormalize = type(layer).forward, getattr(layer, _RENORMALIZES, None), of.renormalize
    dtype_of_all = torch.float32 if of.is_wide else None

    def compute(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gates = linear(x, self.weight, getattr(self, "bias", None))
        size = len(gates), self.top_k
        scores, ids = gates.new_empty(size, dtype=dtype_of_all), gates.new_empty(size, dtype=int64)
        op(scores, ids, gates, renormalize)
        return gates, scores, ids

    def seam(theirs: Forward, self: Any, x: torch.Tensor) -> Any:
        weight = self.weight
        if (
            type(x) is plain
            and type(weight) is parameter
            and x.dtype is weight.dtype
            and x.dtype in DTYPES
            and x.dim() == 2
            and getattr(self, _RENORMALIZES, None) == setting
        ):
            result = by_ops(give_up, use, self, compute, self, x)
        else:
            result = None
            count_own(use)
        return theirs(self, x) if result is None else result

    ours = ADAPTER.shadowed(use.op, seam, outcome=_chosen, lose=functools.partial(give_up, None))

    def forward(self: Any, hidden_states: torch.Tensor) -> Any:
        if is_grad_enabled() or self.training or is_compiling():
            return own_code(self, use, hidden_states)
        return ours(own, self, hidden_states)

    return forward
