"""Which ops that a user calls give way to their formulas?

A single op splits what the compiler would make one kernel of. So ``rmsnorm``, ``gemma_rmsnorm`` and ``silu_and_mul``
become their formulas where code that the compiler generates computes their input or takes their result, if that was
measured as faster for the shape (``measured.FORMULAS``). They stay where neither is so: then a kernel of ours is as
good. A formula computes in float32 and rounds once, at the end, as the op does. But inside of a kernel the compiler
leaves roundings out, so that what follows reads more digits than from the op. Behind an addition a norm may become a
part of a chain after that.

An op stays where its formula would hide an error, such as a wrong shape, and ``silu_and_mul`` with ``round_first``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from .graphs import (
    Editor,
    Refused,
    Values,
    args,
    aten,
    convert,
    ends_a_kernel,
    equal,
    is_call,
    is_dense,
    is_known,
    replace,
    same_layout,
    value,
)
from .inductor import is_writing
from .measured import Shape, formula_is_faster
from .norms import DTYPES

__all__ = ["Call", "calls", "fuse"]

_Make = Callable[[Editor, Mapping[str, Any]], fx.Node]


@dataclass(frozen=True)
class Call:
    """A call of an op.

    Attributes:
        formula: puts the nodes of its formula into a graph.
        out: the value of what it writes, after it.
        base: the same before it.
        arguments: the others, and ``input`` if it is overwritten.
    """

    op: str
    formula: _Make
    out: fx.Node
    base: fx.Node
    arguments: Mapping[str, Any]


def calls(graph: fx.Graph) -> Iterator[Call]:
    """The calls of ops that have a formula, in the graph's order."""
    for node in list(graph.nodes):
        if not is_writing(node):
            continue
        name = str(args(node)[0].name()).split(".")[0]
        written = "input" if name.endswith("_") else "out"  # the form in place has that name
        formula = _FORMULAS.get(name.removesuffix("_"))
        users = [user for user in node.users if is_call(user, operator.getitem)]
        bases = node.kwargs["_all_bases"]
        own = {key for key in node.kwargs if str(key).startswith(f"_{written}_")}
        is_whole = own == {f"_{written}_base_index"} and len(bases) == 1 and len(users) == len(node.users) == 1
        if formula is not None and is_whole and args(users[0])[1] == 1:
            rest = {key: x for key, x in node.kwargs.items() if not str(key).startswith("_")}
            op = name.partition("::")[2].removesuffix("_")
            yield Call(op, formula, users[0], bases[0], {"input": bases[0], **rest})


def fuse(graph: fx.Graph, call: Call) -> None:
    """Put the formula of an op in its place.

    Raises:
        Refused: the op stays, for a reason.
    """
    values = Values(graph)
    read = [x for name, x in call.arguments.items() if name in ("input", "up") and isinstance(x, fx.Node)]
    if not any(map(_is_generated, map(values.owner, read))) and not any(map(_is_generated, values.readers(call.out))):
        raise Refused("nothing around it is code that the compiler generates")
    target = call.base.meta["val"]
    shape = Shape(math.prod(target.shape[:-1]), target.shape[-1], target.dtype)
    if not formula_is_faster(call.op, shape, target.device):
        raise Refused("nobody measured that its formula is faster for its shape")
    node = args(call.out)[0]
    editor = Editor(graph, node)
    try:
        new = call.formula(editor, call.arguments)
        if not equal(new.meta["val"].shape, target.shape) or target.dtype not in DTYPES:
            raise Refused("it does not take the shape or dtype of its output")
        new = editor.call(convert, new, target.dtype)
        if not same_layout(new.meta["val"], call.out.meta["val"]):
            raise Refused("its result would have other strides")
    except Refused:
        editor.undo()
        raise
    replace(graph, {call.out: new}, {node})


def _is_generated(node: fx.Node) -> bool:
    """Whether the compiler generates code for a value, which it could fuse with a neighbour."""
    return node.op == "call_function" and not (
        ends_a_kernel(node)
        or is_writing(node)
        or is_call(node, operator.getitem, aten.copy_.default, aten.empty.memory_format)
    )


def _norm(plus_one: bool) -> _Make:
    def make(editor: Editor, arguments: Mapping[str, Any]) -> fx.Node:
        x, weight, eps = arguments["input"], arguments["weight"], arguments["eps"]
        rows, vector = _tensor(x), _tensor(weight)
        if not isinstance(eps, (int, float)) or eps < 0:
            raise Refused("its eps is not known, or negative")
        fits = (vector.dtype, vector.device) == (rows.dtype, rows.device) and rows.dim() > 1 and is_dense(vector)
        if not fits or not equal(vector.shape, rows.shape[-1:]):
            raise Refused("it does not take such a weight")
        wide, factor = (editor.call(convert, node, torch.float32) for node in (x, weight))
        mean = editor.call(aten.mean.dim, editor.call(aten.mul.Tensor, wide, wide), [-1], True)
        root = editor.call(aten.rsqrt.default, editor.call(aten.add.Tensor, mean, float(eps)))
        factor = editor.call(aten.add.Tensor, factor, 1.0) if plus_one else factor
        normed = editor.call(aten.mul.Tensor, editor.call(aten.mul.Tensor, wide, root), factor)
        return editor.call(convert, normed, rows.dtype)

    return make


def _silu(editor: Editor, arguments: Mapping[str, Any]) -> fx.Node:
    x, up, size = arguments["input"], arguments["up"], _tensor(arguments["input"]).shape[-1]
    if arguments["round_first"]:
        raise Refused("it rounds twice")
    if up is None:
        if not is_known(size) or size % 2:
            raise Refused("its input has no two halves")
        x, up = (editor.call(aten.slice.Tensor, x, -1, start, start + size // 2) for start in (0, size // 2))
    elif not equal(_tensor(up).shape, _tensor(x).shape) or _tensor(up).dtype != _tensor(x).dtype:
        raise Refused("its gate and its input are not alike")
    gate, factor = (editor.call(convert, node, torch.float32) for node in (x, up))
    below = editor.call(aten.add.Tensor, editor.call(aten.exp.default, editor.call(aten.neg.default, gate)), 1.0)
    return editor.call(aten.mul.Tensor, editor.call(aten.div.Tensor, gate, below), factor)


def _tensor(node: fx.Node) -> torch.Tensor:
    tensor = value(node)
    if tensor is None or tensor.dtype not in DTYPES:
        raise Refused("it does not take the dtype of its input")
    return tensor


_FORMULAS: Mapping[str, _Make] = {
    "sgljit_norm::rmsnorm": _norm(plus_one=False),
    "sgljit_norm::gemma_rmsnorm": _norm(plus_one=True),
    "sgljit_activation::silu_and_mul": _silu,
}
