"""Which layers compute routed experts, and how do they run on ops?

transformers sorts the rows of the tokens by expert for a grouped product, or copies the matrices of each row's expert:
thirty launches, which take most of a layer's time in eager mode. For few rows four launches do: an op multiplies each
row with the matrix of its expert where that lies, and another one adds what a token's experts give. With many rows
PyTorch's grouped product reads each matrix once, and ops do what stands around it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sgljit_core import ops
from sgljit_core.errors import SgljitError
from sgljit_engines import Use
from sgljit_engines.kernels import try_rows

from .adapter import ADAPTER
from .mlps import ACTIVATIONS
from .seams import DTYPES, NO_RULE, Forward, GiveUp, by_ops, count_own, own_code
from .trials import of_config, plain, takes, tried, without_parts

__all__ = ["Experts", "match"]

_WEIGHTS = ("gate_up_proj", "down_proj")
_BIASES = ("gate_up_proj_bias", "down_proj_bias")
# Rows for which the op was measured as faster than a grouped product, if most have an expert of their own.
_FEW = 64
_CLAMPED = "clamped_swiglu"
Formula = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Experts:
    """A layer that computes the weighted sum of what each token's experts give, which are gated MLPs.

    Attributes:
        activation: the op of the family ``activation`` between both products.
        in_turns: whether gates and values follow each other, a gate first; else all gates come first.
        is_turned: whether a matrix has a row for each element that it takes, and not for each that it gives.
    """

    activation: str
    in_turns: bool
    is_turned: bool
    op = "expert_matvec"
    family = "moe"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"moe_sum", "sort_by_expert", self.activation})

    def weight(self, layer: Any) -> torch.Tensor | None:
        return plain(layer.gate_up_proj)

    def kind(self, layer: Any) -> tuple[object, ...]:
        weight = self.weight(layer)
        return () if weight is None else ("x".join(map(str, weight.shape)),)

    def attempt(self, layer: Any) -> None:
        weight = tried(self.weight(layer))
        if weight is None:
            return
        compute = self._computing()
        experts, size = weight.shape[0], weight.shape[1 if self.is_turned else 2]
        k = min(experts, of_config(layer, "num_experts_per_tok", 1))

        def call(tokens: int) -> None:
            ids = torch.arange(k, device=weight.device).repeat(tokens, 1)
            try:
                with torch.no_grad():
                    compute(layer, weight.new_zeros(tokens, size), ids, weight.new_ones(tokens, k))
            except (SgljitError, torch.OutOfMemoryError):
                raise
            except NO_RULE:  # PyTorch's product does not take all sizes and dtypes
                pass

        try_rows(call, k * size, weight.device.type)
        call(_FEW + 1)

    def forward(self, layer: Any, _in_graphs: bool, give_up: GiveUp, use: Use) -> Forward:
        return _on_ops(self._computing(), layer, give_up, use)

    def _computing(self) -> Callable[..., torch.Tensor]:
        """The function that computes the layer by ops."""
        matvec, add, sort = ops["moe"].expert_matvec, ops["moe"].moe_sum, ops["moe"].sort_by_expert
        activate = getattr(ops["activation"], self.activation)
        grouped_mm = torch.nn.functional.grouped_mm
        is_clamped, in_turns, is_turned = self.activation == _CLAMPED, self.in_turns, self.is_turned

        def compute(self: Any, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            first, second = self.gate_up_proj, self.down_proj
            of_first, of_second = (getattr(self, name, None) for name in _BIASES)
            if is_turned:
                first, second = first.transpose(1, 2), second.transpose(1, 2)
            tokens, k = ids.shape
            rows, (experts, size, inner) = tokens * k, second.shape
            ids, activated = ids.contiguous(), x.new_empty(rows, inner)
            few = rows <= min(_FEW, experts)
            if few:
                both, output = x.new_empty(rows, 2 * inner), x.new_empty(rows, size)
                matvec(x, first, ids, both, of_first)
            else:
                pairs, of_pairs, places = ids.new_empty(3, rows, dtype=torch.int32)
                ends = ids.new_empty(experts, dtype=torch.int32)
                sort(ids, pairs, of_pairs, places, ends)
                both = grouped_mm(x[pairs // k], first.transpose(1, 2), offs=ends)
                if of_first is not None:
                    both += of_first[of_pairs]
            if is_clamped:
                activate(both, activated, alpha=self.alpha, limit=self.limit, is_interleaved=in_turns)
            else:
                activate(both, activated)
            if few:
                matvec(activated, second, ids.view(rows), output, of_second)
            else:
                output = grouped_mm(activated, second.transpose(1, 2), offs=ends)
                if of_second is not None:
                    output += of_second[of_pairs]
                output = output[places]
            result = torch.empty_like(x)
            add(output.view(tokens, k, size), result, weights)
            return result

        return compute


def match(layer: nn.Module) -> Experts | None:
    """Only what has the weights of gated experts, and a ``forward`` of three arguments, is looked at more closely."""
    parameters, children = dict(layer.named_parameters()), dict(layer.named_children())
    if parameters.keys() not in ({*_WEIGHTS}, {*_WEIGHTS, *_BIASES}) or not children.keys() <= {"act_fn"}:
        return None
    if [*layer.buffers()] or not takes(3, type(layer).forward):
        return None
    first, second = (parameters[name] for name in _WEIGHTS)
    if first.dim() != 3 or second.dim() != 3 or not first.dtype.is_floating_point:
        return None
    (_, a, b), (_, c, d) = first.shape, second.shape
    if (a, b) != (2 * d, c) and (b, a) != (2 * c, d):
        return None
    is_turned = (a, b) != (2 * d, c)
    candidates = dict(_candidates(layer))
    for dtype, scale in ((torch.float32, 1), (torch.bfloat16, 1), (torch.float32, 1000)):  # a limit may be high
        generator = torch.Generator().manual_seed(0)
        given = _Numbers(dtype, generator, is_turned, has_bias=len(parameters) == 4)
        given.x *= scale
        own = given.result(layer)
        if own is None or own.dtype != dtype or own.shape != given.x.shape:
            return None
        candidates = {key: one for key, one in candidates.items() if given.agrees(own, one, key[1])}
    return Experts(*candidates.popitem()[0], is_turned) if len(candidates) == 1 else None


def _candidates(layer: nn.Module) -> Iterator[tuple[tuple[str, bool], Formula]]:
    """The ops, each with whether gates and values are in turns, and its formula for a gate and a value."""
    for name, activation in ACTIVATIONS.items():
        yield (name, False), functools.partial(_gated, activation)
    alpha, limit = (getattr(layer, name, None) for name in ("alpha", "limit"))
    if isinstance(alpha, float | int) and isinstance(limit, float | int):

        def clamped(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            return (up + 1) * gate * torch.sigmoid(alpha * gate)

        for in_turns in (False, True):
            yield (_CLAMPED, in_turns), clamped


def _gated(activation: Callable[[torch.Tensor], torch.Tensor], gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return activation(gate) * up


class _Numbers:
    """Few tokens, experts and weights by which formulas differ: gates are on both sides of usual limits."""

    def __init__(self, dtype: torch.dtype, generator: torch.Generator, is_turned: bool, has_bias: bool) -> None:
        experts, size, inner, tokens, k = 4, 16, 8, 5, 2

        def randn(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).to(dtype)

        self.is_turned = is_turned
        sizes: dict[str, tuple[int, ...]] = {"gate_up_proj": (2 * inner, size), "down_proj": (size, inner)}
        if has_bias:
            sizes |= {"gate_up_proj_bias": (2 * inner,), "down_proj_bias": (size,)}
        self.parameters = {name: 2 * randn(experts, *shape) for name, shape in sizes.items()}
        self.x, self.weights = randn(tokens, size), randn(tokens, k).abs()
        self.ids = torch.rand(tokens, experts, generator=generator).topk(k).indices

    def result(self, layer: nn.Module) -> torch.Tensor | None:
        """The result of the layer's own code for them."""
        bare: Any = without_parts(layer).eval()
        for name, parameter in self.parameters.items():
            turned = parameter.transpose(1, 2).contiguous() if self.is_turned and parameter.dim() == 3 else parameter
            setattr(bare, name, nn.Parameter(turned, requires_grad=False))
        for name, child in layer.named_children():
            bare.add_module(name, without_parts(child))
        if hasattr(bare, "num_experts"):
            bare.num_experts = self.parameters["gate_up_proj"].shape[0]
        try:
            with torch.no_grad():
                result = type(bare).forward(bare, self.x.clone(), self.ids.clone(), self.weights.clone())
        except Exception:  # noqa: BLE001 - the code of a stranger's layer: whatever it cannot do, it is not replaced
            return None
        return result if isinstance(result, torch.Tensor) else None

    def agrees(self, own: torch.Tensor, formula: Formula, in_turns: bool) -> bool:
        """Whether a result is that of a formula, in float64, to the rounding of the steps between."""
        wide = {name: parameter.double()[self.ids] for name, parameter in self.parameters.items()}
        both = torch.einsum("tkmn,tn->tkm", wide["gate_up_proj"], self.x.double()) + wide.get("gate_up_proj_bias", 0)
        gate, up = (both[..., ::2], both[..., 1::2]) if in_turns else both.chunk(2, -1)
        results = torch.einsum("tkmn,tkn->tkm", wide["down_proj"], formula(gate, up)) + wide.get("down_proj_bias", 0)
        wanted = (results * self.weights.double()[..., None]).sum(1)
        tolerance = 16 * torch.finfo(own.dtype).eps * float(wanted.abs().max())
        return bool(((own.double() - wanted).abs() <= tolerance).all())


def _on_ops(compute: Callable[..., torch.Tensor], layer: Any, give_up: GiveUp, use: Use) -> Forward:
    own, activation = type(layer).forward, type(getattr(layer, "act_fn", None))
    is_grad_enabled, plain, parameter = torch.is_grad_enabled, torch.Tensor, nn.Parameter
    is_compiling = torch.compiler.is_compiling

    def seam(theirs: Forward, self: Any, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Any:
        first, second = self.gate_up_proj, self.down_proj
        if (
            type(x) is type(ids) is type(weights) is plain
            and type(first) is type(second) is parameter
            and x.dtype is first.dtype is second.dtype
            and x.dtype in DTYPES
            and weights.dtype in DTYPES
            and x.dim() == ids.dim() == 2
            and ids.numel() > 0
            and type(getattr(self, "act_fn", None)) is activation  # the layer may have got another one since
            and not getattr(self, "_is_expert_parallel", False)  # then ids may be of other devices' experts
        ):
            result = by_ops(give_up, use, self, compute, self, x, ids, weights)
        else:
            result = None
            count_own(use)
        return theirs(self, x, ids, weights) if result is None else result

    ours = ADAPTER.shadowed(use.op, seam, lose=functools.partial(give_up, None))

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_grad_enabled() or self.training or is_compiling() or kwargs or len(args) != 3:
            return own_code(self, use, *args, **kwargs)
        return ours(own, self, *args)

    return forward
