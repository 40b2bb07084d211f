"""How does one token attend to heads of k and v that several heads of q share, without a copy for each of these?

A model repeats the heads of its cache until q and k have as many: transformers does, where attention has a mask. The
compiler writes the copies out, as a kernel of attention takes whole tensors. A token of a decode waits for them longer
than for attention itself. But each head of q is one row there, and attention knows no order of rows. So the heads that
share a head of k become its rows, as if they were tokens, and the cache is read where it lies. The kernel stays
PyTorch's.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx

from .graphs import Editor, Refused, args, aten, equal, is_call, is_known, number, replace, value

__all__ = ["ATTENTION", "PRODUCT", "group", "parts"]

ATTENTION, PRODUCT = "grouped attention", "grouped product"  # as ``explain`` calls them

_MOST = 65535  # blocks of a launch in one dimension: a kernel of attention has one for each sequence

# By op, the name of its mask; each takes query, key and value, and returns the result first.
_MASKS: Mapping[Any, str] = {
    aten._scaled_dot_product_efficient_attention.default: "attn_bias",
    aten._scaled_dot_product_cudnn_attention.default: "attn_bias",
    aten._scaled_dot_product_flash_attention.default: "",
    aten._scaled_dot_product_flash_attention_for_cpu.default: "attn_mask",
}
# What a mask is made of: the same calls of these have the same value.
_PURE = (
    aten.where.self,
    aten.full.default,
    aten.expand.default,
    aten.unsqueeze.default,
    aten.slice.Tensor,
    aten.constant_pad_nd.default,
    torch.ops.prims.convert_element_type.default,
)
_VIEWS = (aten.reshape.default, aten.clone.default, aten.permute.default)


def parts(graph: fx.Graph) -> list[tuple[str, fx.Node]]:
    """The attentions and the matrix products of a graph, each with its name, in its order."""
    names = {**dict.fromkeys(_MASKS, ATTENTION), aten.bmm.default: PRODUCT}
    return [(names[node.target], node) for node in graph.nodes if node.op == "call_function" and node.target in names]


def group(graph: fx.Graph, part: str, node: fx.Node, masks: dict[Any, fx.Node]) -> bool:
    """Let the heads of q that share a head of k be its rows; whether there are such.

    Args:
        graph: where the node is.
        part: ``ATTENTION`` or ``PRODUCT``.
        node: one of ``parts``.
        masks: what this function has made of masks, which the layers of a graph share.
    """
    editor = Editor(graph, node)
    known = dict(masks)
    try:
        results = _attention(editor, node, known) if part is ATTENTION else _product(editor, node)
    except Refused:
        editor.undo()
        return False
    masks |= known
    replace(graph, results, [node, *_above(node)])
    return True


def _attention(editor: Editor, node: fx.Node, masks: dict[Any, fx.Node]) -> dict[fx.Node, fx.Node]:
    """The new nodes in the place of the results of an attention."""
    given = _named(node)
    q, name = value(given["query"]), _MASKS[node.target]
    keys, values = (_repeated(given[side]) for side in ("key", "value"))
    if q is None or given["is_causal"] or given["dropout_p"] or not _is_one_token(q, keys, values):
        raise Refused("it is not one token, or its heads are not repeated")
    if any(not is_call(user, operator.getitem) or args(user)[1] != 0 for user in node.users):
        raise Refused("something takes more of it than its result")
    batch, heads, length, size = (int(x) for x in keys.meta["val"].shape)
    each = int(q.shape[1]) // heads
    if batch * heads > _MOST:
        raise Refused("a kernel would have too many blocks")
    new = dict(given)
    new["query"] = editor.call(aten.reshape.default, given["query"], [batch * heads, 1, each, int(q.shape[3])])
    for side, base in (("key", keys), ("value", values)):
        new[side] = editor.view(base, batch * heads, 1, length, int(base.meta["val"].shape[3]))
    if name and given[name] is not None:
        new[name] = _mask(editor, given[name], (batch, heads, each, length), masks)
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    positional = [new[one.name] for one in schema if not one.kwarg_only]
    result = editor.call(node.target, *positional, **{one.name: new[one.name] for one in schema if one.kwarg_only})
    out = editor.call(operator.getitem, result, 0)
    whole = editor.call(aten.reshape.default, out, [*q.shape[:3], int(out.meta["val"].shape[3])])
    return dict.fromkeys(node.users, whole)


def _product(editor: Editor, node: fx.Node) -> dict[fx.Node, fx.Node]:
    """The new node in the place of a product [batch * heads, 1, n] @ [batch * heads, n, m], whose heads are repeated."""
    left, right = args(node)
    rows, flat = value(left), right
    if not is_call(flat, aten.reshape.default) or rows is None or not all(is_known(size) for size in rows.shape):
        raise Refused("it is no product of heads")
    flat = args(flat)[0]
    if is_call(flat, aten.expand.default) and equal(flat.meta["val"].shape, args(flat)[0].meta["val"].shape):
        flat = args(flat)[0]
    turned = is_call(flat, aten.permute.default) and list(args(flat)[1]) == [0, 1, 3, 2]
    base = _repeated(args(flat)[0] if turned else flat)
    if base is None or rows.shape[1] != 1 or rows.shape[0] % (base.meta["val"].shape[0] * base.meta["val"].shape[1]):
        raise Refused("it is not one token, or its heads are not repeated")
    batch, heads, length, size = (int(x) for x in base.meta["val"].shape)
    wanted = (rows.shape[0], *((size, length) if turned else (length, size)))
    if not equal(right.meta["val"].shape, wanted):
        raise Refused("it is no product of heads")
    matrices = editor.view(base, batch * heads, length, size)
    if turned:
        matrices = editor.call(aten.permute.default, matrices, [0, 2, 1])
    grouped = editor.call(aten.reshape.default, left, [batch * heads, -1, int(rows.shape[2])])
    result = editor.call(aten.bmm.default, grouped, matrices)
    return {node: editor.call(aten.reshape.default, result, [int(rows.shape[0]), 1, -1])}


def _named(node: fx.Node) -> dict[str, Any]:
    """The arguments of a call by name, with their defaults."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    given = dict(zip((one.name for one in schema), args(node), strict=False))
    return {one.name: node.kwargs.get(one.name, given.get(one.name, one.default_value)) for one in schema}


def _repeated(node: Any) -> fx.Node | None:
    """[batch, heads, length, size], of which a value repeats each head; None if it does not, or sizes may change."""
    if not is_call(node, aten.reshape.default):
        return None
    wide = args(node)[0]
    if is_call(wide, aten.clone.default):
        wide = args(wide)[0]
    if not is_call(wide, aten.expand.default) or not is_call(args(wide)[0], aten.unsqueeze.default):
        return None
    base, dim = args(args(wide)[0])
    shape = base.meta["val"].shape
    if len(shape) != 4 or dim not in (2, -3) or not all(is_known(size) for size in shape):
        return None
    batch, heads, length, size = shape
    each = wide.meta["val"].shape[2]
    is_repeated = equal(wide.meta["val"].shape, (batch, heads, each, length, size))
    return base if is_repeated and equal(node.meta["val"].shape, (batch, heads * each, length, size)) else None


def _is_one_token(q: torch.Tensor, keys: fx.Node | None, values: fx.Node | None) -> bool:
    """Whether q [batch, heads, 1, size] attends to such heads."""
    if keys is None or values is None or not all(is_known(size) for size in q.shape) or q.dim() != 4:
        return False
    batch, heads, length, size = keys.meta["val"].shape
    return bool(
        q.shape[0] == batch
        and q.shape[1] % heads == 0
        and q.shape[2] == 1
        and q.shape[3] == size
        and values.meta["val"].shape[:3] == (batch, heads, length)
    )


def _mask(editor: Editor, mask: fx.Node, sizes: tuple[int, int, int, int], masks: dict[Any, fx.Node]) -> fx.Node:
    """A mask [batch or 1, heads or 1, 1, length] for rows that were heads: [batch * heads of k, 1, heads each, length].

    All layers take one, which the compiler has to write out: each would else have its own. What it need not repeat is a
    view.
    """
    batch, heads, each, length = sizes
    tensor = mask.meta["val"]
    if tensor.dim() != 4 or not equal(tensor.shape[2:], (1, length)):
        raise Refused("its mask has another shape")
    alike = [number(size, 1) or number(stride, 0) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]

    def make() -> fx.Node:
        one = mask
        for dim in (0, 1):
            if alike[dim]:
                one = editor.call(aten.slice.Tensor, one, dim, 0, 1)
        if alike[0] and alike[1]:
            shape = [1, 1, each, length]
        else:
            one = editor.call(aten.expand.default, one, [batch, heads if alike[1] else heads * each, 1, length])
            one = editor.call(aten.reshape.default, one, [batch * heads, 1, 1 if alike[1] else each, length])
            shape = [batch * heads, 1, each, length]
        rows = editor.call(aten.expand.default, one, shape)
        return editor.call(aten.clone.default, rows, memory_format=torch.contiguous_format)

    key = (_recipe(mask), sizes)
    if key not in masks:
        masks[key] = make()
    return editor.call(aten.expand.default, masks[key], [batch * heads, 1, each, length])


def _recipe(node: Any) -> Any:
    """What computes a mask: equal for nodes that surely have the same value."""
    if isinstance(node, (list, tuple)):
        return tuple(map(_recipe, node))
    if not is_call(node, *_PURE):
        return node
    return (node.target, _recipe(node.args), tuple((name, _recipe(x)) for name, x in sorted(node.kwargs.items())))


def _above(node: fx.Node) -> Iterable[fx.Node]:
    """The views, copies and masks that a node takes: what goes where nothing else takes it."""
    found: dict[fx.Node, None] = {}
    waiting = list(node.all_input_nodes)
    while waiting:
        one = waiting.pop()
        if one not in found and is_call(one, *_PURE, *_VIEWS):
            found[one] = None
            waiting += one.all_input_nodes
    return found
