"""How is the code of a layer tried on a few numbers, without a change to the layer?"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["StandIn", "of_config", "plain", "takes", "tried", "without_parts"]


def plain(weight: Any) -> torch.Tensor | None:
    """The tensor of a parameter; None for any other kind, such as a quantised one."""
    weight = weight.detach() if isinstance(weight, nn.Parameter) else None
    return weight if type(weight) is torch.Tensor else None


def tried(weight: torch.Tensor | None) -> torch.Tensor | None:
    """A weight for which an op is called before the model calls it; None where its kernel is found at that call."""
    return weight if weight is not None and weight.device.type in ("cpu", "cuda") else None


def of_config(layer: nn.Module, name: str, default: int) -> int:
    """A number of the model's config, which most layers hold."""
    found = getattr(getattr(layer, "config", None), name, None)
    return found if isinstance(found, int) else default


class StandIn(nn.Module):
    """It takes a projection's place: keeps what it is given, and gives what it is told."""

    def __init__(self, result: torch.Tensor) -> None:
        super().__init__()
        self.result = result
        self.given: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.given.append(x)
        return self.result


def takes(count: int, forward: Callable[..., object]) -> bool:
    """Whether a ``forward`` takes so many arguments beside ``self``."""
    kinds = [parameter.kind for parameter in inspect.signature(forward).parameters.values()]
    return kinds == [inspect.Parameter.POSITIONAL_OR_KEYWORD] * (1 + count)


def without_parts(layer: nn.Module) -> nn.Module:
    """A layer of the same class and attributes, without parameters, parts, hooks, or a ``forward`` of its own."""
    bare: nn.Module = object.__new__(type(layer))
    nn.Module.__init__(bare)
    for name, value in vars(layer).items():
        if name not in vars(bare) and name != "forward":
            setattr(bare, name, value)
    return bare
