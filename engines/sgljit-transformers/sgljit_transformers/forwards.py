"""What runs in the place of a layer's ``forward``?

It is the code between a model and a kernel, called for every norm and every MLP of every token. So it asks only what a
sound result needs, and each question costs less than a tenth of a microsecond. An op refuses a wrong dtype or a
gradient by itself; these are asked first because a refusal is slow, and because a compiled graph has no way back from
one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sgljit_core import ops
from sgljit_core.errors import InferenceOnlyError, SgljitError, TensorMatchError

from .layers import GatedMLP, Norm

__all__ = ["Repository"]

_DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})
_NOT_TAKEN = (TensorMatchError, InferenceOnlyError, IndexError)  # an op does not take such a tensor
_NO_RULE = (RuntimeError, ValueError)  # such as torch.vmap, for which ops have no rule

Op = Callable[..., torch.Tensor | None]
GiveUp = Callable[[nn.Module, str, Exception], None]


@dataclass(frozen=True)
class Repository:
    """The ``kernels`` package takes anything with ``load()`` that can be hashed and copied for a layer.

    Attributes:
        match: what the layer computes.
        in_graphs: whether the op stays in graphs of torch.compile. Else the layer's own code does, which the compiler
            fuses with what is around it; an op that stands alone there costs more than it saves.
        give_up: called with the layer, the op and the error where an op cannot be built.
    """

    match: Norm | GatedMLP
    in_graphs: bool
    give_up: GiveUp

    def __str__(self) -> str:
        return f"sgljit_{self.match.family}.{self.match.op}"

    def load(self) -> type[nn.Module]:
        """The class whose ``forward`` takes the place of the layer's. It has nothing else, as ``kernels`` wants it."""
        op = getattr(ops[self.match.family], self.match.op)
        if isinstance(self.match, Norm):
            return _norm(op, self.match.eps_name, self.in_graphs, self.give_up)
        return _gated_mlp(op, self.in_graphs, self.give_up)


def _norm(op: Op, eps_name: str, in_graphs: bool, give_up: GiveUp) -> type[nn.Module]:
    is_grad_enabled, plain, empty_like = torch.is_grad_enabled, torch.Tensor, torch.empty_like
    is_compiling = torch.compiler.is_compiling

    class RMSNorm(nn.Module):
        can_torch_compile = True
        has_backward = False

        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            weight = self.weight
            dtype = hidden_states.dtype
            if (
                is_grad_enabled()
                or self.training
                or (not in_graphs and is_compiling())
                or type(hidden_states) is not plain
                or dtype is not weight.dtype
                or dtype not in _DTYPES
            ):
                return type(self).forward(self, hidden_states)
            try:
                x = hidden_states
                if not x.is_contiguous():
                    x = x.flatten(0, -2)  # a copy only where tokens are at more than one stride
                    if x.stride(-1) != 1:
                        return type(self).forward(self, hidden_states)
                out = empty_like(x)
                op(x, weight, out, getattr(self, eps_name))
            except _NOT_TAKEN:
                return type(self).forward(self, hidden_states)
            except (SgljitError, OSError) as error:
                give_up(self, op.__name__, error)
                return type(self).forward(self, hidden_states)
            except _NO_RULE:
                return type(self).forward(self, hidden_states)
            return out if x is hidden_states else out.view(hidden_states.shape)

    return RMSNorm


def _gated_mlp(op: Op, in_graphs: bool, give_up: GiveUp) -> type[nn.Module]:
    is_grad_enabled, plain, empty_like = torch.is_grad_enabled, torch.Tensor, torch.empty_like
    is_compiling = torch.compiler.is_compiling

    class GatedMLP(nn.Module):
        can_torch_compile = True
        has_backward = False

        def forward(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
            if is_grad_enabled() or self.training or (not in_graphs and is_compiling()):
                return type(self).forward(self, hidden_states)  # type: ignore[no-any-return]
            gate, up = self.gate_proj(hidden_states), self.up_proj(hidden_states)
            if (
                type(gate) is plain
                and type(up) is plain
                and gate.dtype is up.dtype
                and gate.dtype in _DTYPES
                and gate.is_contiguous()
                and up.is_contiguous()
            ):
                try:
                    activated = op(gate, empty_like(gate), up)
                except _NOT_TAKEN:
                    activated = self.act_fn(gate) * up
                except (SgljitError, OSError) as error:
                    give_up(self, op.__name__, error)
                    activated = self.act_fn(gate) * up
                except _NO_RULE:
                    activated = self.act_fn(gate) * up
            else:
                activated = self.act_fn(gate) * up
            return self.down_proj(activated)  # type: ignore[no-any-return]

    return GatedMLP
