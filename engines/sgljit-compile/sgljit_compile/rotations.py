"""Which nodes of a graph compute a rotary embedding?

Two ways of writing it are known: ``x * cos + rotate_half(x) * sin``, and the two halves of each head one by one. Both
turn element i of a head with element i + size / 2. The first takes a cosine for each element, where the op has one for
each pair; so the graph must show that the second half of the cosines repeats the first.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .graphs import args, aten, convert, equal, is_call, is_known, number, pairs, same_layout, value
from .norms import DTYPES

__all__ = ["Rotation", "rotations"]


@dataclass(frozen=True)
class Rotation:
    """``out``: the heads of ``x``, turned by the angles of their tokens.

    Attributes:
        x: [batch, heads, sequence, size], or with sequence before heads.
        heads: the dimension of ``x`` that are heads, 1 or 2.
        cos, sin: [batch or 1, sequence, size], or of size / 2; with one more dimension, ``heads``, if ``wide``.
        nodes: the nodes that compute it from ``x``, ``cos`` and ``sin``, ``out`` among them.
    """

    out: fx.Node
    x: fx.Node
    heads: int
    cos: fx.Node
    sin: fx.Node
    wide: bool
    nodes: frozenset[fx.Node]


def rotations(graph: fx.Graph) -> Iterator[Rotation]:
    """The rotations of a graph, in its order."""
    for node in graph.nodes:
        found = None
        if is_call(node, aten.add.Tensor):
            found = _of_whole(node)
        elif is_call(node, aten.cat.default):
            found = _of_halves(node)
        if found is not None:
            yield found


def _of_whole(out: fx.Node) -> Rotation | None:
    """``x * cos + cat(-x2, x1) * sin``"""
    for straight, turned in pairs(out):
        if not (is_call(straight, aten.mul.Tensor) and is_call(turned, aten.mul.Tensor)):
            return None
        for half, sin in pairs(turned):
            found = _turned_half(half)
            if found is None:
                continue
            x, inner = found
            cos = next((b for a, b in pairs(straight) if a is x), None)
            if cos is None or not (_repeats(cos) and _repeats(sin)):
                return None
            return _rotation(out, x, cos, sin, inner | {straight, turned, out}, repeated=True)
    return None


def _turned_half(cat: Any) -> tuple[fx.Node, frozenset[fx.Node]] | None:
    """``x`` of ``cat(-x2, x1)``, and its nodes."""
    parts = _both(cat)
    if parts is None or not is_call(parts[0], aten.neg.default):
        return None
    first, second = _half(parts[1]), _half(args(parts[0])[0])
    if first is None or second is None or first[0] is not second[0] or (first[1], second[1]) != (0, 1):
        return None
    return first[0], frozenset({cat, parts[0]}) | first[2] | second[2]


def _of_halves(out: fx.Node) -> Rotation | None:
    """``cat(x1 * cos - x2 * sin, x2 * cos + x1 * sin)``"""
    parts = _both(out)
    if parts is None or not is_call(parts[0], aten.sub.Tensor) or not is_call(parts[1], aten.add.Tensor):
        return None
    less, more = parts
    if less.kwargs or more.kwargs or not all(is_call(x, aten.mul.Tensor) for x in (*args(less), *args(more))):
        return None
    for one, cos in pairs(args(less)[0]):
        for two, sin in pairs(args(less)[1]):
            first, second = _half(one), _half(two)
            if first is None or second is None or first[0] is not second[0] or (first[1], second[1]) != (0, 1):
                continue
            wanted = {frozenset((two, cos)), frozenset((one, sin))}
            if {frozenset(args(x)) for x in args(more)} == wanted:
                inner = frozenset({less, more, out, *args(less), *args(more)}) | first[2] | second[2]
                return _rotation(out, first[0], cos, sin, inner, repeated=False)
    return None


def _both(cat: Any) -> tuple[Any, Any] | None:
    """The two parts of a concatenation along the last dimension."""
    if not is_call(cat, aten.cat.default) or len(args(cat)) != 2 or len(args(cat)[0]) != 2:
        return None
    rows = value(cat)
    return tuple(args(cat)[0]) if rows is not None and args(cat)[1] in (-1, rows.dim() - 1) else None


def _half(node: Any) -> tuple[fx.Node, int, frozenset[fx.Node]] | None:
    """The value that a node is a half of along the last dimension, which half, and the nodes between."""
    if is_call(node, aten.slice.Tensor) and len(args(node)) == 4:
        x, dim, start, end = args(node)
        rows = value(x)
        if rows is None or dim not in (-1, rows.dim() - 1) or not is_known(rows.shape[-1]):
            return None
        size = rows.shape[-1]
        if size % 2 or not is_known(end):
            return None
        if (start, min(end, size)) in ((0, size // 2), (size // 2, size)):
            return x, int(start != 0), frozenset({node})
        return None
    if is_call(node, operator.getitem) and is_call(args(node)[0], aten.split.Tensor):
        split, which = args(node)
        rows = value(args(split)[0])
        last = args(split)[2] if len(args(split)) > 2 else 0
        if rows is None or last not in (-1, rows.dim() - 1) or not is_known(args(split)[1]):
            return None
        if not number(rows.shape[-1], 2 * args(split)[1]):
            return None
        return args(split)[0], which, frozenset({node, split})
    return None


_POINTWISE = (aten.cos.default, aten.sin.default, aten.neg.default, convert)
_SHAPED = (aten.unsqueeze.default, aten.expand.default, aten.clone.default)


def _repeats(node: Any) -> bool:
    """Whether the second half of each row is surely the first once more."""
    rows = value(node)
    if rows is None or rows.dim() < 2 or not is_known(rows.shape[-1]) or rows.shape[-1] % 2:
        return False
    parts = _both(node)
    if parts is not None:
        return parts[0] is parts[1]
    if is_call(node, aten.reshape.default, aten.view.default):
        source = value(args(node)[0])
        if source is None or source.dim() < 2:
            return False
        if source.dim() == rows.dim() + 1 and number(source.shape[-2], 2):  # [..., 2, size / 2]: each twice
            return equal((2 * source.shape[-1],), rows.shape[-1:]) and _is_expanded(args(node)[0])
        return False
    if is_call(node, *_POINTWISE):
        return _repeats(args(node)[0])
    if is_call(node, aten.mul.Tensor):
        factor = value(args(node)[1])
        is_scalar = isinstance(args(node)[1], (int, float)) or (factor is not None and factor.dim() == 0)
        return is_scalar and _repeats(args(node)[0])
    if is_call(node, *_SHAPED):
        source = value(args(node)[0])
        if source is None or source.dim() < 2 or not number(source.shape[-1], rows.shape[-1]):
            return False
        return _repeats(args(node)[0])
    return False


def _is_expanded(node: Any) -> bool:
    """Whether the dimension before the last was made by repeating one."""
    if is_call(node, aten.clone.default):
        node = args(node)[0]
    source = value(args(node)[0]) if is_call(node, aten.expand.default) else None
    rows = value(node)
    return source is not None and rows is not None and source.dim() == rows.dim() and number(source.shape[-2], 1)


def _rotation(
    out: fx.Node, x: fx.Node, cos: Any, sin: Any, nodes: frozenset[fx.Node], repeated: bool
) -> Rotation | None:
    """The rotation, where dtypes and shapes are those that the op takes."""
    rows, result, cosines, sines = value(x), value(out), value(cos), value(sin)
    if rows is None or result is None or cosines is None or sines is None:
        return None
    if rows.dim() != 4 or cosines.dim() != 4 or rows.dtype not in DTYPES or not equal(result.shape, rows.shape):
        return None
    if not (rows.dtype == cosines.dtype == sines.dtype == result.dtype) or not same_layout(cosines, sines):
        return None
    size = rows.shape[-1]
    if not is_known(size) or not number(cosines.shape[-1], size if repeated else size // 2) or size % 2:
        return None
    if not (statically_known_true(cosines.shape[0] == 1) or statically_known_true(cosines.shape[0] == rows.shape[0])):
        return None
    for heads in (1, 2):
        if number(cosines.shape[heads], 1) and statically_known_true(cosines.shape[3 - heads] == rows.shape[3 - heads]):
            flat: list[Any] = [_without_heads(node, heads) for node in (cos, sin)]
            wide = None in flat
            first, second = (cos, sin) if wide else flat
            return Rotation(out, x, heads, first, second, wide, nodes)
    return None


def _without_heads(node: fx.Node, heads: int) -> fx.Node | None:
    """The value before ``unsqueeze`` gave it a dimension for heads: it is one node for all layers."""
    return args(node)[0] if is_call(node, aten.unsqueeze.default) and args(node)[1] in (heads, heads - 4) else None
