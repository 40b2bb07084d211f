"""How does attention with sinks, as gpt-oss has it, run on a kernel of PyTorch's attention?

A sink is a score of a head that takes part in the softmax and has no value. A kernel of attention returns the logarithm
of the sum of each row's exponentials, too. So the result with a sink is the result without it, multiplied by
``1 / (1 + exp(sink - logarithm))``. A model writes two matrix products and the softmax between them, which the compiler
splits into half a dozen kernels.

Sinks: https://arxiv.org/abs/2309.17453; as a parameter of each head, the model card of gpt-oss, section 2.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from .attention import (
    CUDNN,
    EFFICIENT,
    ON_CPU,
    RESHAPES,
    Masks,
    folded,
    is_aligned,
    is_taken,
    product_of_heads,
    shape,
    written_once,
)
from .graphs import Editor, Refused, args, aten, convert, equal, is_call, is_known, leaks, number, pairs, replace, value
from .softmax import reduces, softmax

__all__ = ["SINKS", "Sinks", "attentions", "fuse"]

SINKS = "attention with sinks"  # as ``explain`` calls it


@dataclass(frozen=True)
class Sinks:
    """``softmax([q @ keys^T * scale + mask, sinks])`` without its last column, times ``values``.

    Attributes:
        out: the second product, [batch * heads, rows, size].
        q: [batch * heads, rows, size of k].
        keys, values: [batch, heads of k, length, size].
        mask: added to the scores; None if there is none.
        sinks: [batch, heads, rows, 1].
        nodes: what computes ``out`` and nothing else may take.
    """

    out: fx.Node
    q: fx.Node
    keys: fx.Node
    values: fx.Node
    scale: float
    mask: fx.Node | None
    sinks: fx.Node
    nodes: frozenset[fx.Node]


def attentions(graph: fx.Graph) -> Iterator[Sinks]:
    """The attentions with sinks of a graph, in its order. Each may be fused before the next is asked for."""
    for node in [node for node in graph.nodes if is_call(node, aten.bmm.default)]:
        found = _found(node)
        if found is not None:
            yield found


def fuse(graph: fx.Graph, one: Sinks, masks: Masks) -> None:
    """Put a kernel of attention and the factor of the sinks in the place of the products.

    Raises:
        Refused: the graph stays as it is, for a reason.
    """
    if leaks(one.nodes, {one.out}):
        raise Refused("something takes a value inside of it, such as the scores")
    editor, before = Editor(graph, one.out), dict(masks.written)
    try:
        out, logarithms = _attention(editor, one, masks)
        batch, heads, rows, _ = shape(one.sinks)
        size = shape(one.out)[2]
        wide = [editor.call(convert, x, torch.float32) for x in (out, one.sinks)]
        behind = editor.call(aten.reshape.default, logarithms, [batch, heads, rows, 1])
        share = editor.call(aten.sigmoid.default, editor.call(aten.sub.Tensor, behind, wide[1]))
        scaled = editor.call(
            aten.mul.Tensor, editor.call(aten.reshape.default, wide[0], [batch, heads, rows, size]), share
        )
        # Where the mask leaves nothing but the sink, a kernel may return what is no number.
        nothing = editor.call(aten.full.default, [], 0.0, dtype=torch.float32, device=out.meta["val"].device)
        kept = editor.call(aten.where.self, editor.call(aten.eq.Scalar, share, 0), nothing, scaled)
        rounded = editor.call(convert, kept, one.out.meta["val"].dtype)
        result = editor.call(aten.reshape.default, rounded, shape(one.out))
    except Refused:
        editor.undo()
        masks.written = before
        raise
    replace(graph, {one.out: result}, one.nodes)


def _attention(editor: Editor, one: Sinks, masks: Masks) -> tuple[fx.Node, fx.Node]:
    """The result of the attention without sinks, and the logarithm of each row's sum.

    Raises:
        Refused: no kernel takes it.
    """
    batch, heads, rows, _ = shape(one.sinks)
    q = editor.call(aten.reshape.default, one.q, [batch, heads, rows, shape(one.q)[2]])
    keys, values, mask = one.keys, one.values, one.mask
    device = q.meta["val"].device.type
    if device not in ("cpu", "cuda"):
        raise Refused("it is on another device")
    if not all(number(x.meta["val"].stride(3), 1) for x in (keys, values)):
        raise Refused("the elements of its rows are not side by side")
    if device == "cuda" and not all(is_aligned(x.meta["val"]) for x in (keys, values)):
        raise Refused("its rows do not begin at 16 bytes")
    by_cudnn = device == "cuda" and is_taken(CUDNN, (q, keys, values), False)
    if by_cudnn:
        mask = mask if mask is None else written_once(editor, mask, masks)
    else:
        q, keys, values, mask = folded(editor, (q, keys, values, mask), False, masks)
        if device == "cuda" and not is_taken(EFFICIENT, (q, keys, values), False):
            raise Refused("no kernel of PyTorch takes it")
    if device == "cpu":
        call = editor.call(ON_CPU, q, keys, values, attn_mask=mask, scale=one.scale)
    else:
        if not by_cudnn and mask is not None:
            mask = editor.call(aten.expand.default, mask, [*shape(q)[:3], shape(keys)[2]])
        call = editor.call(CUDNN if by_cudnn else EFFICIENT, q, keys, values, mask, True, scale=one.scale)
    out, logarithms = (editor.call(operator.getitem, call, i) for i in (0, 1))
    if device == "cuda" and not by_cudnn:  # its rows are padded to 32
        logarithms = editor.call(aten.slice.Tensor, logarithms, 2, 0, shape(q)[2])
    return out, logarithms


def _found(out: fx.Node) -> Sinks | None:
    try:
        return _around(out)
    except Refused:
        return None


def _around(out: fx.Node) -> Sinks:
    """The attention with sinks whose second product a node is.

    Raises:
        Refused: it is none.
    """
    left, values, turned = product_of_heads(out)
    nodes = {out}
    part = _unmoved(left, nodes)
    if turned or not is_call(part, aten.slice.Tensor):
        raise Refused("it is no attention with sinks")
    nodes.add(part)
    whole = args(part)[0]
    if is_call(whole, convert):
        nodes.add(whole)
        whole = args(whole)[0]
    found = softmax(whole)
    if found is None:
        raise Refused("it is no attention with sinks")
    columns, inner = found
    nodes |= inner
    columns = _unshifted(columns, nodes)
    if not is_call(columns, aten.cat.default) or len(args(columns)[0]) != 2:
        raise Refused("it is no attention with sinks")
    nodes.add(columns)
    scores, sinks = args(columns)[0]
    sizes = shape(columns)
    if len(sizes) != 4 or args(columns)[1:] not in ((-1,), (3,)) or not all(map(is_known, sizes)):
        raise Refused("it is no attention with sinks, or its sizes change")
    length = sizes[3] - 1
    if not equal(shape(sinks), [*sizes[:3], 1]) or not _leaves_out_the_last(part, length):
        raise Refused("it is no attention with sinks")
    product, mask = _masked(scores, nodes)
    product, scale = _scaled(product, nodes)
    product = _unmoved(product, nodes)
    if not is_call(product, aten.bmm.default):
        raise Refused("it is no attention with sinks")
    nodes.add(product)
    q, keys, turned = product_of_heads(product)
    batch, heads, rows, _ = sizes
    fits = equal(shape(q)[:2], (batch * heads, rows)) and equal(shape(left), (batch * heads, rows, length))
    # A view may have other heads than the cache: then a mask would be for others, too.
    fits = fits and equal(shape(keys)[:1], (batch,)) and heads % shape(keys)[1] == 0
    dtypes = {x.meta["val"].dtype for x in (q, keys, values, *([] if mask is None else [mask]))}
    if not turned or not fits or not equal(shape(keys), shape(values)) or len(dtypes) != 1:
        raise Refused("it is no attention with sinks")
    if mask is not None and (len(shape(mask)) != 4 or not equal(shape(mask)[2:], (rows, length))):
        raise Refused("its mask has another shape")
    return Sinks(out, q, keys, values, scale, mask, sinks, frozenset(nodes))


def _unmoved(node: Any, nodes: set[fx.Node]) -> Any:
    """The value of which a node is a view or a copy. The nodes between go to ``nodes``."""
    while is_call(node, *RESHAPES, aten.expand.default, aten.clone.default):
        if is_call(node, aten.expand.default) and not equal(shape(node), shape(args(node)[0])):
            break
        nodes.add(node)
        node = args(node)[0]
    return node


def _unshifted(columns: fx.Node, nodes: set[fx.Node]) -> fx.Node:
    """Columns without a conversion, and before their largest value was subtracted, which changes no softmax."""
    inner = set()
    if is_call(columns, convert):
        inner.add(columns)
        columns = args(columns)[0]
    if is_call(columns, aten.sub.Tensor) and not columns.kwargs:
        base, peak = args(columns)
        inner.add(columns)
        if is_call(peak, operator.getitem) and args(peak)[1] == 0 and is_call(args(peak)[0], aten.max.dim):
            largest = args(peak)[0]
            if args(largest) in ((base, -1, True), (base, 3, True)) and not largest.kwargs:
                inner |= {peak, largest}
                columns = base
        elif reduces(peak, aten.amax.default, base):
            inner.add(peak)
            columns = base
    nodes |= inner
    return columns


def _leaves_out_the_last(part: fx.Node, length: int) -> bool:
    """Whether a slice has the first columns of ``length + 1``."""
    if len(part.args) != 4 or part.kwargs:
        return False
    _, dim, start, end = args(part)
    return dim in (3, -1) and number(start, 0) and end in (-1, length)


def _masked(scores: Any, nodes: set[fx.Node]) -> tuple[Any, fx.Node | None]:
    """The scores before a mask was added, and the mask."""
    if is_call(scores, aten.add.Tensor):
        for product, mask in pairs(scores):
            inner = set[fx.Node]()
            base, _ = _scaled(product, inner)
            if is_call(_unmoved(base, inner), aten.bmm.default) and value(mask) is not None:
                nodes.add(scores)
                return product, mask
    return scores, None


def _scaled(product: Any, nodes: set[fx.Node]) -> tuple[Any, float]:
    """A product before it was scaled by a number, and the number."""
    if is_call(product, aten.mul.Tensor) and isinstance(args(product)[1], (int, float)):
        nodes.add(product)
        return args(product)[0], float(args(product)[1])
    return product, 1.0
