"""Which layers are gated MLPs, and how does their activation run on an op?"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sgljit_core import ops
from sgljit_core.errors import SgljitError, TensorMatchError
from sgljit_engines import Use
from sgljit_engines.errors import InexactError

from .adapter import ADAPTER
from .seams import DTYPES, NO_RULE, NOT_TAKEN, Forward, GiveUp, Op, count_own, own_code
from .trials import StandIn, plain, takes, tried, without_parts

__all__ = ["ACTIVATIONS", "GatedMLP", "match"]

_PARTS = ("gate_proj", "up_proj", "down_proj")
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu_and_mul": torch.nn.functional.silu,
    "gelu_and_mul": torch.nn.functional.gelu,
    "gelu_tanh_and_mul": functools.partial(torch.nn.functional.gelu, approximate="tanh"),
}


@dataclass(frozen=True)
class GatedMLP:
    """A layer that computes ``down_proj(act_fn(gate_proj(x)) * up_proj(x))``, whatever its projections are.

    Attributes:
        op: the op of the family ``activation`` that computes what the down projection gets.
    """

    op: str
    family = "activation"
    needs = frozenset[str]()

    def weight(self, layer: Any) -> torch.Tensor | None:
        return plain(getattr(layer.gate_proj, "weight", None))

    def kind(self, layer: Any) -> tuple[object, ...]:
        weight = self.weight(layer)
        size: tuple[object, ...] = () if weight is None else (weight.shape[0],)
        return (*size, type(layer.act_fn).__name__) if ADAPTER.exact else size  # whose bits the op gives

    def attempt(self, layer: Any) -> None:
        op = getattr(ops[self.family], self.op)
        if ADAPTER.exact:
            _prove(op, layer.act_fn, self.weight(layer))
        weight = tried(self.weight(layer))
        if weight is None:
            return
        size = weight.shape[0]
        with contextlib.suppress(TensorMatchError):  # a projection may be quantised
            for tokens in (1, 8):  # rows that end in an incomplete load, and rows that do not
                op(weight.new_ones(tokens, size), None, weight.new_ones(tokens, size))

    def forward(self, layer: Any, in_graphs: bool, give_up: GiveUp, use: Use) -> Forward:
        op = getattr(ops[self.family], self.op)
        if ADAPTER.exact:
            weight = layer.gate_proj.weight
            op = _exact(op, weight.dtype, weight.device.type)
        if ADAPTER.shadow:
            op = _compared(op, layer.act_fn, functools.partial(give_up, None))
        return _gated_mlp(self.op, op, type(layer.act_fn), in_graphs, give_up, use)


def match(layer: nn.Module) -> GatedMLP | None:
    """Only what has three projections, an activation, and a ``forward`` of one argument is looked at more closely."""
    children = dict(layer.named_children())
    if children.keys() != {*_PARTS, "act_fn"} or not takes(1, type(layer).forward):
        return None
    activation = children["act_fn"]
    own = [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]
    if [*own, *activation.parameters(), *activation.buffers(), *activation.children()]:
        return None
    candidates = set(ACTIVATIONS)
    for dtype in (torch.float32, torch.bfloat16):
        generator = torch.Generator().manual_seed(0)
        x, gate, up, down = ((torch.randn(2, 3, 40, generator=generator) * 8).to(dtype) for _ in range(4))
        bare = without_parts(layer)
        for part, result in zip(_PARTS, (gate, up, down), strict=True):
            bare.add_module(part, StandIn(result))
        bare.add_module("act_fn", without_parts(activation))
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
            if ((actual.double() - ACTIVATIONS[op](gate.double()) * up.double()).abs() <= tolerance).all()
        }
    return GatedMLP(candidates.pop()) if len(candidates) == 1 else None


def _prove(op: Any, activation: Any, weight: torch.Tensor | None) -> None:
    """Prove that an op gives the bits of a layer's own code, in the dtype and on the device of its weight.

    Raises:
        sgljit_engines.errors.InexactError: that cannot be shown.
    """
    if weight is None:
        raise InexactError("the dtype of its projections is not known, as they are quantised")
    from sgljit_activation import bits  # of a family that is in use now

    def ours(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return op(gate, None, up, round_first=True)  # type: ignore[no-any-return]

    with torch.no_grad():
        found = bits.difference(ours, lambda gate, up: activation(gate) * up, weight.dtype, weight.device)
    if found is not None:
        raise InexactError(found)


def _exact(op: Op, dtype: torch.dtype, device: str) -> Op:
    """An activation with the bits of a layer's own code, and of no other dtype and device than it was proven for."""

    def exact(gate: torch.Tensor, out: torch.Tensor, up: torch.Tensor) -> torch.Tensor | None:
        if gate.dtype != dtype or gate.device.type != device:
            raise InexactError(f"its bits are known to be the layer's own in {dtype} on {device} alone")
        return op(gate, out, up, round_first=True)

    exact.__name__ = op.__name__
    return exact


def _compared(op: Op, activation: Any, lose: Callable[[str, Exception], None]) -> Op:
    """An op of which ``SGLJIT_SHADOW`` compares some calls. An activation holds nothing: any layer's will do."""

    def theirs(gate: torch.Tensor, _out: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return activation(gate) * up  # type: ignore[no-any-return]

    def seam(_theirs: Op, gate: torch.Tensor, out: torch.Tensor, up: torch.Tensor) -> torch.Tensor | None:
        return op(gate, out, up)

    return functools.partial(ADAPTER.shadowed(op.__name__, seam, lose=lose), theirs)


def _gated_mlp(name: str, op: Op, activation: type, in_graphs: bool, give_up: GiveUp, use: Use) -> Forward:
    is_grad_enabled, plain, empty_like = torch.is_grad_enabled, torch.Tensor, torch.empty_like
    is_compiling = torch.compiler.is_compiling

    def forward(self: Any, hidden_states: torch.Tensor) -> Any:
        if is_grad_enabled() or self.training or (not in_graphs and is_compiling()):
            return own_code(self, use, hidden_states)
        gate, up = self.gate_proj(hidden_states), self.up_proj(hidden_states)
        if (
            type(self.act_fn) is activation  # the layer may have got another one since
            and type(gate) is plain
            and type(up) is plain
            and gate.dtype is up.dtype
            and gate.dtype in DTYPES
            and gate.is_contiguous()
            and up.is_contiguous()
        ):
            try:
                activated = op(gate, empty_like(gate), up)
            except NOT_TAKEN:
                pass
            except (SgljitError, OSError) as error:
                give_up(self, name, error)
            except NO_RULE:
                pass
            else:
                if not in_graphs or not is_compiling():
                    use.calls += 1
                return self.down_proj(activated)
        if not is_compiling():
            count_own(use)
        return self.down_proj(self.act_fn(gate) * up)

    return forward
