"""Which nodes of a graph are a softmax of rows? Inductor's decompositions leave differences, exponentials and sums."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from .graphs import args, aten, is_call, value

__all__ = ["reduces", "softmax"]


def softmax(node: Any) -> tuple[fx.Node, frozenset[fx.Node]] | None:
    """The value of float32 whose softmax over the last dimension a node is, and the nodes of the softmax."""
    rows = value(node)
    if rows is None or rows.dtype != torch.float32 or not is_call(node, aten.div.Tensor):
        return None
    exp, total = args(node)
    if not is_call(exp, aten.exp.default) or not reduces(total, aten.sum.dim_IntList, exp):
        return None
    shifted = args(exp)[0]
    if not is_call(shifted, aten.sub.Tensor) or shifted.kwargs:
        return None
    wide, peak = args(shifted)
    if not reduces(peak, aten.amax.default, wide):
        return None
    return wide, frozenset({node, exp, total, shifted, peak})


def reduces(node: Any, target: Any, x: Any) -> bool:
    """Whether a node reduces the last dimension of a value to one element."""
    if not is_call(node, target) or node.kwargs or args(node)[0] is not x:
        return False
    return args(node)[1:] in (([-1], True), ([x.meta["val"].dim() - 1], True))
