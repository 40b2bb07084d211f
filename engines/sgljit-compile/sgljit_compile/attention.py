"""How does attention read keys and values that several heads of q share, without a copy for each of these?

A model repeats the heads of its cache until k has as many as q: transformers does, where attention has a mask. A kernel
of attention takes whole tensors, so the compiler writes the copies out, and a decode waits for them.

PyTorch's attention by cuDNN takes fewer heads of k than of q, and gets the cache itself. For the other kernels, the
heads of q that share one of k become rows of one head, since rows have no order. With a mask they do so for one token,
as in a decode: several would need a mask for each head. A matrix product has no mask. The kernels stay PyTorch's.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import fx

from .graphs import Editor, Refused, Values, args, aten, equal, is_call, is_known, number, replace, same_layout
from .inductor import attention_op

__all__ = [
    "ATTENTION",
    "CUDNN",
    "EFFICIENT",
    "ON_CPU",
    "PRODUCT",
    "RESHAPES",
    "Masks",
    "folded",
    "group",
    "is_aligned",
    "is_taken",
    "parts",
    "product_of_heads",
    "shape",
    "switches",
    "written_once",
]

ATTENTION, PRODUCT = "grouped attention", "grouped product"  # as ``explain`` calls them


class _Form(NamedTuple):
    """Where a kernel of attention has its arguments behind query, key and value. It returns the result first."""

    mask: int | str
    dropout: int
    is_causal: int


FORMS: Mapping[Any, _Form] = {
    attention_op("cudnn_attention"): _Form(3, 5, 6),
    attention_op("efficient_attention"): _Form(3, 5, 6),
    attention_op("flash_attention_for_cpu"): _Form("attn_mask", 3, 4),
}
CUDNN, EFFICIENT, ON_CPU = FORMS
_MOST = 65535  # sequences of a call: blocks of a launch in one dimension
_ROWS = 64  # of the tensors that PyTorch is asked about

RESHAPES = (aten.reshape.default, aten.view.default)
# The calls that make a mask: the same ones have the same value.
_PURE = (
    *RESHAPES,
    aten.where.self,
    aten.full.default,
    aten.scalar_tensor.default,
    aten.expand.default,
    aten.unsqueeze.default,
    aten.slice.Tensor,
    aten.constant_pad_nd.default,
    torch.ops.prims.convert_element_type.default,
)
_MOVES = (aten.clone.default, aten.permute.default)

_answers: dict[tuple[Any, ...], bool] = {}


def parts(graph: fx.Graph) -> list[tuple[str, fx.Node]]:
    """The attentions and the matrix products of a graph, each with its name, in its order."""
    names = {**dict.fromkeys(FORMS, ATTENTION), aten.bmm.default: PRODUCT}
    return [(names[node.target], node) for node in graph.nodes if node.op == "call_function" and node.target in names]


@dataclass
class Masks:
    """The masks of a graph, which its layers share.

    Attributes:
        written: by what computes a mask and its sizes, the node of the mask as a kernel takes it.
        recipes: by node, a number of what computes it: the same for nodes that surely have the same value.
        numbers: these numbers by what they stand for.
    """

    written: dict[Any, fx.Node] = field(default_factory=dict)
    recipes: dict[fx.Node, int] = field(default_factory=dict)
    numbers: dict[Any, int] = field(default_factory=dict)

    def recipe(self, node: Any) -> Any:
        """A key of the calls that make a mask."""
        if isinstance(node, (list, tuple)):
            return tuple(map(self.recipe, node))
        if not is_call(node, *_PURE):
            return node
        if node not in self.recipes:
            named = tuple((name, self.recipe(x)) for name, x in sorted(node.kwargs.items()))
            made = (node.target, self.recipe(node.args), named)
            self.recipes[node] = self.numbers.setdefault(made, len(self.numbers))
        return ("recipe", self.recipes[node])


def group(graph: fx.Graph, part: str, node: fx.Node, masks: Masks) -> bool:
    """Let an attention or a product read keys and values without a copy for each head; whether it had copies.

    Args:
        graph: where the node is.
        part: ``ATTENTION`` or ``PRODUCT``.
        node: one of ``parts``.
        masks: those of the graph.
    """
    editor = Editor(graph, node)
    before = dict(masks.written)
    try:
        results = _attention(editor, node, masks) if part == ATTENTION else _product(editor, node)
    except Refused:
        editor.undo()
        masks.written = before
        return False
    replace(graph, results, [node, *_above(node)])
    return True


def _attention(editor: Editor, node: fx.Node, masks: Masks) -> dict[fx.Node, fx.Node]:
    """The new nodes in the place of the results of an attention.

    Raises:
        Refused: its heads are not repeated, or the kernel cannot do without.
    """
    target: Any = node.target
    form, (q, *sides) = FORMS[target], args(node)[:3]
    keys, values = map(_repeated, sides)
    if keys is None or values is None or not equal(shape(keys)[:3], shape(values)[:3]):
        raise Refused("its heads are not repeated")
    takes_more = any(not is_call(user, operator.getitem) or args(user)[1] != 0 for user in node.users)
    if takes_more or _given(node, form.dropout) or not {"scale", form.mask}.issuperset(node.kwargs):
        raise Refused("it drops values, or something takes more of it than its result")
    if target in (CUDNN, EFFICIENT) and not all(is_aligned(x.meta["val"]) for x in (keys, values)):
        raise Refused("its rows do not begin at 16 bytes")
    is_causal, mask = bool(_given(node, form.is_causal)), _given(node, form.mask)
    if target is not CUDNN:
        q, keys, values, mask = folded(editor, (q, keys, values, mask), is_causal, masks)
    elif not is_taken(CUDNN, (q, keys, values), is_causal):
        raise Refused("cuDNN does not take it")
    elif mask is not None:
        mask = written_once(editor, mask, masks)
    if target is EFFICIENT and mask is not None:
        mask = editor.call(aten.expand.default, mask, [*shape(q)[:3], shape(keys)[2]])
    new, named = [q, keys, values, *args(node)[3:]], dict(node.kwargs)
    if isinstance(form.mask, str):
        named[form.mask] = mask
    else:
        new[form.mask] = mask
    out = editor.call(operator.getitem, editor.call(target, *new, **named), 0)
    for user in node.users:
        if not equal(shape(out), shape(user)):
            out = editor.call(aten.reshape.default, out, shape(user))
        same = same_layout(user.meta["val"], out.meta["val"])
        if not same and Values(editor.graph).has_strides_by_number(user):
            raise Refused("its result would have other strides, which something names")
    return dict.fromkeys(node.users, out)


def folded(
    editor: Editor, given: tuple[fx.Node, fx.Node, fx.Node, Any], is_causal: bool, masks: Masks
) -> tuple[fx.Node, fx.Node, fx.Node, Any]:
    """q, k, v and the mask, where all rows of q that share a head of k are a sequence.

    Raises:
        Refused: the mask is for several tokens, or a size is not known.
    """
    q, keys, values, mask = given
    batch, heads, length, size = shape(keys)
    if not all(map(is_known, (*shape(q), batch, length))) or batch * heads > _MOST:
        raise Refused("its sizes change, or there are too many sequences")
    if is_causal:
        raise Refused("its token attends to the first key alone")
    rows = editor.call(aten.reshape.default, q, [batch * heads, 1, -1, size])
    sides = [editor.view(x, batch * heads, 1, length, shape(x)[3]) for x in (keys, values)]
    if mask is not None:
        mask = _mask(editor, mask, (batch, heads, shape(q)[1] // heads, length), shape(q)[2], masks)
    return rows, sides[0], sides[1], mask


def _product(editor: Editor, node: fx.Node) -> dict[fx.Node, fx.Node]:
    """The new node in the place of a product of heads.

    Raises:
        Refused: it is none.
    """
    left, base, turned = product_of_heads(node)
    batch, heads, length, size = shape(base)
    matrices = editor.view(base, batch * heads, length, size)
    if turned:
        matrices = editor.call(aten.permute.default, matrices, [0, 2, 1])
    grouped = editor.call(aten.reshape.default, left, [batch * heads, -1, shape(left)[2]])
    result = editor.call(aten.bmm.default, grouped, matrices)
    return {node: editor.call(aten.reshape.default, result, shape(node))}


def product_of_heads(node: fx.Node) -> tuple[fx.Node, fx.Node, bool]:
    """The parts of a product [batch * heads, rows, n] @ [batch * heads, n, m] with repeated heads.

    Returns:
        The left operand; the value [batch, heads, length, size] whose heads are repeated; and whether the product is
        with its transpose.

    Raises:
        Refused: it is none.
    """
    left, right = args(node)
    flat = right
    if not all(map(is_known, shape(left))) or not is_call(flat, *RESHAPES):
        raise Refused("it is no product of heads")
    flat = args(flat)[0]
    if is_call(flat, aten.expand.default) and equal(shape(flat), shape(args(flat)[0])):
        flat = args(flat)[0]
    turned = is_call(flat, aten.permute.default) and list(args(flat)[1]) == [0, 1, 3, 2]
    base = _repeated(args(flat)[0] if turned else flat)
    if base is None or not all(is_known(size) for size in shape(base)):
        raise Refused("its heads are not repeated, or its sizes change")
    _, _, length, size = shape(base)
    if not equal(shape(right)[1:], (size, length) if turned else (length, size)):
        raise Refused("it is no product of heads")
    return left, base, turned


def shape(node: fx.Node) -> list[Any]:
    """The sizes of a value."""
    return list(node.meta["val"].shape)


def _given(node: fx.Node, place: int | str) -> Any:
    """An argument of a call, by its place or its name; None where the call leaves it out."""
    if isinstance(place, str):
        return node.kwargs.get(place)
    return args(node)[place] if place < len(node.args) else None


def is_aligned(tensor: torch.Tensor) -> bool:
    """Whether each row surely begins at a multiple of 16 bytes, as kernels read. The copies that go do."""
    outer = zip(tensor.shape[:3], tensor.stride()[:3], strict=True)
    steps = [tensor.storage_offset(), *(stride for size, stride in outer if not number(size, 1))]
    return number(tensor.stride(3), 1) and equal([x * tensor.itemsize % 16 for x in steps], [0] * len(steps))


def written_once(editor: Editor, mask: fx.Node, masks: Masks) -> fx.Node:
    """A mask that all layers share, where its sizes are known."""
    if not all(map(is_known, shape(mask))):
        return mask
    return _written(editor, masks.recipe(mask), functools.partial(_once, editor, mask), masks)


def _once(editor: Editor, mask: fx.Node) -> fx.Node:
    """A mask without the copies of an expanded dimension, which kernels broadcast."""
    tensor = mask.meta["val"]
    for dim in range(tensor.dim() - 2):
        if number(tensor.stride(dim), 0):
            mask = editor.call(aten.slice.Tensor, mask, dim, 0, 1)
    return mask


def _repeated(node: Any) -> fx.Node | None:
    """The value [batch, heads, length, size], of which a node repeats each head; None if it does not."""
    if not is_call(node, *RESHAPES):
        return None
    wide = args(node)[0]
    if is_call(wide, aten.clone.default):
        wide = args(wide)[0]
    if not is_call(wide, aten.expand.default) or not is_call(args(wide)[0], aten.unsqueeze.default):
        return None
    base, dim = args(args(wide)[0])
    if len(shape(base)) != 4 or dim not in (2, -3):
        return None
    batch, heads, length, size = shape(base)
    each = shape(wide)[2]
    if not is_known(heads) or not is_known(each) or not equal(shape(wide), (batch, heads, each, length, size)):
        return None
    return base if equal(shape(node), (batch, heads * each, length, size)) else None


def switches() -> tuple[bool, bool]:
    """Which of the two kernels this process allows: a part of the answers, and of the keys of torch's caches."""
    cuda: Any = torch.backends.cuda  # untyped
    return cuda.cudnn_sdp_enabled(), cuda.mem_efficient_sdp_enabled()


def is_taken(kernel: Any, given: Iterable[fx.Node], is_causal: bool) -> bool:
    """Whether PyTorch says that cuDNN or the kernel for little memory takes such q, k and v.

    cuDNN may get fewer heads of k than of q.
    """
    samples = []
    for node in given:
        tensor = node.meta["val"]
        _, heads, length, size = tensor.shape
        if not all(map(is_known, (heads, length, size))) or not number(tensor.stride(3), 1):
            return False
        samples.append(((1, heads, min(length, _ROWS), size), tensor.dtype, tensor.device))
    key = (kernel, *samples, is_causal, switches())
    if key not in _answers:
        q, k, v = (torch.empty(size, dtype=dtype, device=device) for size, dtype, device in samples)
        cuda: Any = torch.backends.cuda  # untyped
        ask = cuda.can_use_cudnn_attention if kernel is CUDNN else cuda.can_use_efficient_attention
        _answers[key] = ask(cuda.SDPAParams(q, k, v, None, 0.0, is_causal, kernel is CUDNN))
    return _answers[key]


def _mask(editor: Editor, mask: fx.Node, sizes: tuple[int, int, int, int], tokens: int, masks: Masks) -> fx.Node:
    """A mask [batch or 1, heads or 1, 1, length] for rows that were heads: [batch * heads or 1, 1, heads each, length].

    Raises:
        Refused: it has another shape.
    """
    batch, heads, each, length = sizes
    tensor = mask.meta["val"]
    if tensor.dim() != 4 or tokens != 1 or not equal(tensor.shape[2:], (1, length)):
        raise Refused("its mask has another shape, or is for several tokens")
    outer = zip(tensor.shape[:2], tensor.stride()[:2], strict=True)

    def make() -> fx.Node:
        if all(number(size, 1) or number(stride, 0) for size, stride in outer):
            first = editor.call(aten.slice.Tensor, editor.call(aten.slice.Tensor, mask, 0, 0, 1), 1, 0, 1)
            return editor.call(aten.expand.default, first, [1, 1, each, length])
        every = editor.call(aten.expand.default, mask, [batch, heads * each, 1, length])
        return editor.call(aten.reshape.default, every, [batch * heads, 1, each, length])

    return _written(editor, (masks.recipe(mask), sizes), make, masks)


def _written(editor: Editor, key: Any, make: Callable[[], fx.Node], masks: Masks) -> fx.Node:
    """A mask that the compiler writes out once. It would do so for each layer that takes it."""
    if key not in masks.written:
        dense = editor.call(aten.clone.default, make(), memory_format=torch.contiguous_format)
        fake = dense.meta["val"]
        masks.written[key] = editor.call(aten.as_strided.default, dense, list(fake.shape), list(fake.stride()))
    return masks.written[key]


def _above(node: fx.Node) -> Iterable[fx.Node]:
    """The copies and masks that a node takes: what goes where nothing else takes it."""
    found: dict[fx.Node, None] = {}
    waiting = list(node.all_input_nodes)
    while waiting:
        one = waiting.pop()
        if one not in found and is_call(one, *_PURE, *_MOVES):
            found[one] = None
            waiting += one.all_input_nodes
    return found
