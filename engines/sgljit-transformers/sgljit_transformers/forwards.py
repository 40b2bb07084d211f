"""What runs in the place of a layer's ``forward``?

It is the code between a model and a kernel, called for every norm of every token: so it asks only what a sound result
needs, and each question costs less than a tenth of a microsecond. An op refuses a wrong dtype or a gradient by itself;
these are asked first because a refusal is slow, and because a compiled graph has no way back from one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

import sgljit_norm
from sgljit_core.errors import InferenceOnlyError, SgljitError, TensorMatchError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Repository"]

_DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})


@dataclass(frozen=True)
class Repository:
    """What the ``kernels`` package asks for a layer: anything with ``load()``, that can be hashed and copied.

    Attributes:
        op: the op of the family ``norm``.
        eps_name: the layer's attribute that holds eps.
        give_up: called with the layer, the op and the error where an op cannot be built.
    """

    op: str
    eps_name: str
    give_up: Callable[[nn.Module, str, Exception], None]

    def __str__(self) -> str:
        return f"sgljit_norm.{self.op}"

    def load(self) -> type[nn.Module]:
        """The class whose ``forward`` takes the place of the layer's. It has nothing else, as ``kernels`` wants it."""
        op, eps_name, give_up = getattr(sgljit_norm, self.op), self.eps_name, self.give_up
        is_grad_enabled, plain, empty_like = torch.is_grad_enabled, torch.Tensor, torch.empty_like

        class RMSNorm(nn.Module):
            can_torch_compile = True
            has_backward = False

            def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
                weight = self.weight
                dtype = hidden_states.dtype
                if (
                    is_grad_enabled()
                    or self.training
                    or type(hidden_states) is not plain
                    or dtype is not weight.dtype
                    or dtype not in _DTYPES
                ):
                    return type(self).forward(self, hidden_states)
                try:
                    x = hidden_states
                    if not x.is_contiguous():
                        x = x.flatten(0, -2)  # a copy only where tokens are at more than one stride
                    out = empty_like(x)
                    op(x, weight, out, getattr(self, eps_name))
                except (TensorMatchError, InferenceOnlyError, IndexError):  # what the op does not take
                    return type(self).forward(self, hidden_states)
                except (SgljitError, OSError) as error:
                    give_up(self, op.__name__, error)
                    return type(self).forward(self, hidden_states)
                except (RuntimeError, ValueError):  # such as torch.vmap, for which ops have no rule
                    return type(self).forward(self, hidden_states)
                return out if x is hidden_states else out.view(hidden_states.shape)

        return RMSNorm
