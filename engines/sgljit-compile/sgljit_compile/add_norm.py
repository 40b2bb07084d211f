"""How do the addition of a residual and the norm of the sum become one launch, with a norm before the addition?"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import fx

from .graphs import (
    Editor,
    Refused,
    Values,
    args,
    aten,
    ends_a_kernel,
    is_call,
    is_dense,
    leaks,
    number,
    replace,
    same_layout,
    same_shape,
    value,
)
from .norms import Norm
from .ops import ADD_NORM, overload, works

__all__ = ["before", "fuse", "is_behind_addition", "kind_of", "op_of"]


def op_of(norm: Norm, first: Norm | None) -> str:
    """The op for a norm behind an addition, and for the norm before that, if there is one."""
    return ADD_NORM[first is not None, norm.plus_one]


def before(norm: Norm, by_result: Mapping[fx.Node, Norm]) -> Norm | None:
    """The norm of the same kind before the addition: its result is an addend, and has no other use.

    Args:
        norm: behind an addition.
        by_result: the graph's norms by their results.
    """
    for addend in args(norm.x):
        first = by_result.get(addend)
        if first is None or is_behind_addition(first) or len(addend.users) != 1:
            continue
        if first.eps == norm.eps and first.plus_one == norm.plus_one:
            return first
    return None


def kind_of(norm: Norm) -> tuple[Any, ...]:
    """The size, dtype and device of the rows of a norm."""
    rows = norm.x.meta["val"]
    return (rows.shape[-1], rows.dtype, rows.device)


def fuse(graph: fx.Graph, norm: Norm, first: Norm | None) -> None:
    """Put the op in the place of a norm, of the addition before it, and of the norm before that, if there is one.

    Raises:
        Refused: the graph stays as it is, for a reason.
    """
    total, values = norm.x, Values(graph)
    x, residual = _addends(total)
    chain = [norm]
    if first is not None:
        x, residual = (first.x, residual) if x is first.out else (first.x, x)
        chain.insert(0, first)
    inputs = {x, residual, *(one.weight for one in chain)}
    if not values.order.keys() >= inputs:
        raise Refused("its inputs are results of another chain")
    if any(leaks(one.nodes, one.shared | {one.out}) for one in chain):
        raise Refused("something takes a value inside of it, such as the sum in float32")
    if values.order[norm.weight] > values.order[total]:
        raise Refused("its weight is computed later than the sum")
    if not {values.owner(one.weight) for one in chain}.isdisjoint(map(values.owner, (x, residual))):
        raise Refused("a weight shares memory with an addend")
    own = {total} if first is None else {total, *first.nodes}
    for addend, other in ((x, residual), (residual, x)):
        _check(values, addend, other, own)
    op = op_of(norm, first)
    editor = Editor(graph, total)
    try:
        rows = [_rows(editor, addend) for addend in (x, residual)]
        weights = dict(zip(("weight", "next_weight"), (one.weight for one in chain), strict=False))
        _try(op, kind_of(norm), [view for _, view in rows], weights, norm.eps)
        written = {name: row for name, (row, _) in zip(("input", "residual"), rows, strict=True)}
        normed, summed = editor.write(overload(op), written, {**weights, "eps": norm.eps})
        for old, new in ((norm.out, normed), (total, summed)):
            if not same_layout(old.meta["val"], new.meta["val"]):
                raise Refused("its result would have other strides")
    except Refused:
        editor.undo()
        raise
    replace(graph, {norm.out: normed, total: summed}, {node for one in chain for node in one.nodes})


def _rows(editor: Editor, addend: fx.Node) -> tuple[tuple[fx.Node, tuple[Any, ...]], torch.Tensor]:
    """An addend [..., size] as a base with its view [rows, size], and the fake tensor of that view.

    The base is the addend itself: the compiler has to write it out for the op, once, and not its copy.

    Raises:
        Refused: its strides allow no such view.
    """
    tensor = addend.meta["val"]
    if not is_dense(tensor) or not number(tensor.storage_offset(), 0) or tensor.dim() < 2:
        raise Refused("its addends are not contiguous, or a part of something")
    *outer, size = (editor.size(addend, dim) for dim in range(tensor.dim()))
    return (addend, ([editor.product(*outer), size], [size, 1], 0)), tensor.view(-1, size)


def _try(op: str, kind: tuple[Any, ...], rows: list[torch.Tensor], weights: Mapping[str, fx.Node], eps: float) -> None:
    """Whether the op takes these rows.

    Raises:
        Refused: it does not, or it cannot be built.
    """
    vectors = {name: weight.meta["val"] for name, weight in weights.items()}
    if not works(op, kind, {"input": rows[0], "residual": rows[1], **vectors, "eps": eps}):
        raise Refused(f"{op} does not take it, or cannot be built")


def is_behind_addition(norm: Norm) -> bool:
    """Whether the input of a norm is a sum of two tensors."""
    total = norm.x
    return is_call(total, aten.add.Tensor) and not total.kwargs and all(isinstance(x, fx.Node) for x in args(total))


def _addends(total: fx.Node) -> tuple[fx.Node, fx.Node]:
    """The two values of a sum.

    Raises:
        Refused: they are not like the sum.
    """
    first, second = args(total)
    tensors = [x for node in (first, second, total) if (x := value(node)) is not None]
    if len(tensors) != 3 or not same_shape(*tensors) or first is second:
        raise Refused("its addends differ in shape or dtype")
    return first, second


def _check(values: Values, addend: fx.Node, other: fx.Node, own: Collection[fx.Node]) -> None:
    """Whether an addend may be overwritten by the nodes of a chain, and whether a kernel ends with it."""
    owner = values.owner(addend)
    if owner.op != "call_function":
        raise Refused("an addend is an input of the graph, which an op in place would have to copy")
    if owner is values.owner(other):
        raise Refused("its addends share memory")
    last = max(values.order[node] for node in own)
    others = values.readers(addend).difference(own)
    if any(values.order[user] > last for user in others):
        raise Refused("an addend is needed later, which an op in place would have to copy")
    if any(is_call(user, aten.cat.default) for user in others):  # the compiler may let an addend lie in the result
        raise Refused("an addend is a part of a concatenation")
    if not others and not ends_a_kernel(owner):
        raise Refused("an addend is computed by code that the compiler fuses with the addition")
