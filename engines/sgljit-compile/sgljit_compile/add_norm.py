"""How do the addition of a residual and the norm of the sum become one launch?"""

from __future__ import annotations

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

__all__ = ["fuse", "is_behind_addition", "kind_of", "op_of"]


def op_of(norm: Norm) -> str:
    """The op for a norm behind an addition."""
    return ADD_NORM[norm.plus_one]


def kind_of(norm: Norm) -> tuple[Any, ...]:
    """The size, dtype and device of the rows of a norm."""
    rows = norm.x.meta["val"]
    return (rows.shape[-1], rows.dtype, rows.device)


def fuse(graph: fx.Graph, norm: Norm) -> None:
    """Put the op in the place of a norm and of the addition before it.

    Raises:
        Refused: the graph stays as it is, for a reason.
    """
    total, values = norm.x, Values(graph)
    first, second = _addends(total)
    if leaks(norm.nodes, norm.shared | {norm.out}):
        raise Refused("something takes a value inside of it, such as the sum in float32")
    if values.order[norm.weight] > values.order[total]:
        raise Refused("its weight is computed later than the sum")
    for addend, other in ((first, second), (second, first)):
        _check(values, addend, other, total)
    editor = Editor(graph, total)
    try:
        rows = [_rows(editor, addend) for addend in (first, second)]
        _try(norm, [view for _, view in rows])
        written = {name: row for name, (row, _) in zip(("input", "residual"), rows, strict=True)}
        normed, summed = editor.write(overload(op_of(norm)), written, {"weight": norm.weight, "eps": norm.eps})
        for old, new in ((norm.out, normed), (total, summed)):
            if not same_layout(old.meta["val"], new.meta["val"]):
                raise Refused("its result would have other strides")
    except Refused:
        editor.undo()
        raise
    replace(graph, {norm.out: normed, total: summed}, norm.nodes)


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


def _try(norm: Norm, flat: list[torch.Tensor]) -> None:
    """Whether the op takes these rows.

    Raises:
        Refused: it does not, or it cannot be built.
    """
    op = op_of(norm)
    arguments = {"input": flat[0], "residual": flat[1], "weight": norm.weight.meta["val"], "eps": norm.eps}
    if not works(op, kind_of(norm), arguments):
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


def _check(values: Values, addend: fx.Node, other: fx.Node, total: fx.Node) -> None:
    """Whether an addend may be overwritten, and whether a kernel ends with it."""
    owner = values.owner(addend)
    if owner.op != "call_function":
        raise Refused("an addend is an input of the graph, which an op in place would have to copy")
    if owner is values.owner(other):
        raise Refused("its addends share memory")
    others = values.readers(addend) - {total}
    if any(values.order[user] > values.order[total] for user in others):
        raise Refused("an addend is needed later, which an op in place would have to copy")
    if any(is_call(user, aten.cat.default) for user in others):  # the compiler may let an addend lie in the result
        raise Refused("an addend is a part of a concatenation")
    if not others and not ends_a_kernel(owner):
        raise Refused("an addend is computed by code that the compiler fuses with the addition")
