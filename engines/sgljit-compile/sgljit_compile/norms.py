"""Which nodes of a graph compute RMSNorm?

Not a class says so, and no source line, but the nodes: the mean of the squares of a row, a root, two products. Each is
of float32, and the result is rounded to the input's dtype; how often it is rounded before differs by model, and the op
rounds once. A formula that differs in anything else is no match.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from .graphs import args, aten, convert, is_call, is_dense, is_known, number, pairs, value

__all__ = ["DTYPES", "Norm", "has_unknown_eps", "norms"]

DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})


@dataclass(frozen=True)
class Norm:
    """``out = x / sqrt(mean(x**2, -1) + eps) * weight``, of each row of ``x``.

    Attributes:
        plus_one: whether it multiplies by ``1 + weight``.
        nodes: the nodes that compute it from ``x`` and ``weight``, ``out`` among them.
        shared: those of them that others may take: what is computed from the weight alone.
    """

    out: fx.Node
    x: fx.Node
    weight: fx.Node
    eps: float
    plus_one: bool
    nodes: frozenset[fx.Node]
    shared: frozenset[fx.Node]


def norms(graph: fx.Graph) -> Iterator[Norm]:
    """The norms of a graph, in its order."""
    for node in graph.nodes:
        if is_call(node, aten.rsqrt.default) or (is_call(node, aten.pow.Tensor_Scalar) and number(args(node)[1], -0.5)):
            norm = _around(node)
            if norm is not None:
                yield norm


def has_unknown_eps(root: fx.Node) -> bool:
    """Whether a node is the root of a mean of squares and of an ``eps`` that is a value of the graph, not a number."""
    if not is_call(root, aten.rsqrt.default) or not is_call(args(root)[0], aten.add.Tensor):
        return False
    for mean, eps in pairs(args(root)[0]):
        single = value(eps)
        if is_call(mean, aten.mean.dim) and _squared(mean) is not None and single is not None and single.dim() == 0:
            return True
    return False


def _around(root: fx.Node) -> Norm | None:
    """The norm that a root is of."""
    shifted = args(root)[0]
    if not is_call(shifted, aten.add.Tensor, aten.add.Scalar):
        return None
    for mean, eps in pairs(shifted):
        if not is_call(mean, aten.mean.dim) or not isinstance(eps, (int, float)) or eps < 0:
            continue
        wide = _squared(mean)
        if wide is None:
            return None
        x = args(wide)[0] if is_call(wide, convert) else wide
        scaled = next((user for user in root.users if is_call(user, aten.mul.Tensor)), None)
        if scaled is None or set(args(scaled)) != {wide, root}:
            return None
        inner = {root, shifted, mean, args(mean)[0], scaled} | ({wide} if x is not wide else set())
        return _weighted(x, scaled, float(eps), inner)
    return None


def _squared(mean: fx.Node) -> fx.Node | None:
    """The value of float32 whose squares a mean is taken of."""
    if mean.kwargs or len(args(mean)) != 3 or args(mean)[2] is not True:
        return None
    squares, dims = args(mean)[:2]
    rows = value(squares)
    if rows is None or rows.dtype != torch.float32 or list(dims) not in ([-1], [rows.dim() - 1]):
        return None
    if (is_call(squares, aten.pow.Tensor_Scalar) and number(args(squares)[1], 2)) or (
        is_call(squares, aten.mul.Tensor) and args(squares)[0] is args(squares)[1]
    ):
        wide = args(squares)[0]
    else:
        return None
    found = value(wide)
    return wide if found is not None and found.dtype == torch.float32 else None


def _weighted(x: fx.Node, scaled: fx.Node, eps: float, inner: set[fx.Node]) -> Norm | None:
    """The norm of ``x`` whose normalised rows are ``scaled``: by a weight, rounded to the dtype of ``x``."""
    rows = value(x)
    if rows is None or rows.dtype not in DTYPES:
        return None
    node = scaled
    for _ in range(3):  # rounded, multiplied, and rounded; or multiplied and rounded
        if len(node.users) != 1:
            return None
        (user,) = node.users
        if is_call(user, convert) and args(user)[1] in (rows.dtype, torch.float32):
            node = user
            inner = inner | {user}
        elif is_call(user, aten.mul.Tensor):
            found = _weight(user, node, rows)
            if found is None:
                return None
            weight, plus_one, own = found
            out, last = user, value(user)
            if last is not None and last.dtype != rows.dtype:
                (out,) = user.users if len(user.users) == 1 else (user,)
                if not is_call(out, convert) or args(out)[1] != rows.dtype:
                    return None
            return Norm(out, x, weight, eps, plus_one, frozenset(inner | {user, out} | own), frozenset(own))
        else:
            return None
    return None


def _weight(product: fx.Node, normed: fx.Node, rows: torch.Tensor) -> tuple[fx.Node, bool, frozenset[fx.Node]] | None:
    """The weight of a product, whether it is ``1 + weight``, and the nodes between."""
    for one, factor in pairs(product):
        if one is not normed or not isinstance(factor, fx.Node):
            continue
        own: set[fx.Node] = set()
        plus_one = False
        weight: Any = factor
        if is_call(weight, aten.add.Tensor):
            own.add(weight)
            plus_one, weight = True, next((a for a, b in pairs(weight) if number(b, 1)), None)
        if is_call(weight, convert) and args(weight)[1] == torch.float32:
            own.add(weight)
            weight = args(weight)[0]
        found = value(weight)
        if found is None or found.dtype != rows.dtype or found.dim() != 1 or found.device != rows.device:
            return None
        if not (is_known(found.shape[0]) and number(rows.shape[-1], found.shape[0]) and is_dense(found)):
            return None
        return weight, plus_one, frozenset(own)
    return None
