"""How do the addition of a residual and the norm of the sum become one launch?"""

from __future__ import annotations

from typing import Any

from torch import fx

from .graphs import Editor, Refused, Values, aten, ends_a_kernel, erase, is_call, same_layout, same_shape, value
from .norms import Norm
from .ops import ADD_NORM, overload, works

__all__ = ["addends", "fuse", "kind_of", "op_of"]


def op_of(norm: Norm) -> str:
    """The op for a norm behind an addition."""
    return ADD_NORM[norm.plus_one]


def kind_of(norm: Norm) -> tuple[Any, ...]:
    """What ``report`` calls the rows of a norm."""
    rows = norm.x.meta["val"]
    return (rows.shape[-1], rows.dtype, rows.device)


def fuse(graph: fx.Graph, norm: Norm) -> None:
    """Put the op in the place of a norm and of the addition before it.

    Raises:
        Refused: the graph stays as it is, for a reason.
    """
    total, values = norm.x, Values(graph)
    first, second = addends(norm)
    if norm.leaks:
        raise Refused("something takes a value inside of it, such as the sum in float32")
    if values.order[norm.weight] > values.order[total]:
        raise Refused("its weight is computed later than the sum")
    for addend, other in ((first, second), (second, first)):
        _check(values, addend, other, total)
    editor = Editor(graph, total)
    try:
        size = total.meta["val"].shape[-1]
        flat = [editor.view(addend, -1, size) for addend in (first, second)]
        written = {"input": (flat[0], ()), "residual": (flat[1], ())}
        _try(norm, flat)
        results = editor.write(overload(op_of(norm)), written, {"weight": norm.weight, "eps": norm.eps})
        shape = [editor.size(first, dim) for dim in range(total.meta["val"].dim())]
        normed, summed = (editor.view(result, *shape) for result in results)
        for old, new in ((norm.out, normed), (total, summed)):
            if not same_layout(old.meta["val"], new.meta["val"]):
                raise Refused("its result would have other strides")
    except Refused:
        editor.undo()
        raise
    for old, new in ((norm.out, normed), (total, summed)):
        new.meta = {**old.meta, **new.meta}
        old.replace_all_uses_with(new)
    erase(graph, {*norm.nodes, total})


def _try(norm: Norm, flat: list[fx.Node]) -> None:
    """Whether the op takes these rows.

    Raises:
        Refused: it does not, or it cannot be built.
    """
    rows, op = flat[0].meta["val"], op_of(norm)
    arguments = {"input": rows, "residual": flat[1].meta["val"], "weight": norm.weight.meta["val"], "eps": norm.eps}
    if not works(op, kind_of(norm), arguments):
        raise Refused(f"{op} does not take it, or cannot be built")


def addends(norm: Norm) -> tuple[fx.Node, fx.Node]:
    """The two values whose sum is normalised.

    Raises:
        Refused: it is no such sum.
    """
    total = norm.x
    if not is_call(total, aten.add.Tensor) or total.kwargs or len(total.args) != 2:
        raise Refused("no addition is right before it")
    first, second = total.args
    tensors = [value(first), value(second), value(total)]
    if None in tensors or not same_shape(*tensors) or first is second:  # type: ignore[arg-type]
        raise Refused("its addends differ in shape or dtype")
    return first, second  # type: ignore[return-value]


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
    if not others and not ends_a_kernel(owner):
        raise Refused("an addend is computed by code that the compiler fuses with the addition")
