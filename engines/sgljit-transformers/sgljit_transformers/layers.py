"""Which op computes what a layer computes?

The layer's own code answers: it runs once on a few numbers, with a weight by which the ops differ, or with stand-ins
for its projections. For attention it is the function that rotates queries and keys. The results are compared with each
op's formula in float64. A table of class names would miss the model of tomorrow, and would trust a name: transformers
calls ``weight``, ``1 + weight`` and no weight at all RMSNorm. A layer that computes something else stays as it is.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn

from sgljit_engines import Use

from . import experts, mlps, norms, rotations, routers
from .seams import Forward, GiveUp

__all__ = ["Computation", "match"]


class Computation(Protocol):
    """A formula that layers compute, and an op that computes it. Equal ones may share a ``forward``."""

    @property
    def op(self) -> str:
        """The op's name, by which it is switched and reported."""

    @property
    def family(self) -> str:
        """The op's family."""

    @property
    def needs(self) -> frozenset[str]:
        """The ops that it calls beside ``op``."""

    def weight(self, layer: Any) -> torch.Tensor | None:
        """The weight that says where a layer is, and which kernel it needs; None where it has no plain one."""

    def kind(self, layer: Any) -> tuple[object, ...]:
        """The sizes that the kernel depends on, beside the dtype and the device: layers that have them share one."""

    def attempt(self, layer: Any) -> None:
        """Call the op for a layer's size, dtype and device: what must be built for these is built now.

        Raises:
            TensorMatchError: the op does not take the layer's weight.
            InexactError: with ``SGLJIT_ENGINES=exact`` the op is not shown to give the bits of the layer's own code.
        """

    def forward(self, layer: Any, in_graphs: bool, give_up: GiveUp, use: Use) -> Forward:
        """The function that takes the place of a layer's ``forward``.

        Args:
            layer: one of those that it is for, whose own code ``SGLJIT_SHADOW`` compares with.
            in_graphs: whether the op stays in graphs of torch.compile, if it can. Else the layer's own code does, which
                the compiler fuses with what is around it; an op that stands alone there costs more than it saves.
            give_up: called where an op fails.
            use: where calls are counted, but for those in compiled graphs.
        """


def match(layer: nn.Module) -> Computation | None:
    """The computation of a layer, if there is an op for it; else None.

    Args:
        layer: any module, on any device, also meta. Neither it nor the global random state changes.
    """
    of_experts = experts.match(layer) or routers.match(layer)
    return of_experts or norms.match(layer) or mlps.match(layer) or rotations.match(layer)
