"""How are rows multiplied with the weights of their experts, without a copy of these weights?

A model may take the weights of each row's expert by its id and multiply each row with its own matrix, as transformers'
``batched_mm`` does. The compiler writes the gathered matrices out: each is read, written and read again, and those of
an expert that several rows chose so many times.

For few rows, such as the experts of one token, an op reads the matrix of each row where it lies.

For more rows a grouped product does so, once for all rows of an expert. Its rows must be in the order of their experts,
and a tensor says where those of each expert end. So the rows are brought into this order before a product, and back
behind it. All that stands around a product, such as biases, activations and the sum of a token's experts, stays: the
compiler fuses both steps into it. The order is written as transformers' ``grouped_mm`` has it, and the pass for the
order of experts makes one launch of it.

A product that is a multiplication and a sum in the graph stays: the compiler fuses the gathering into these. On a CPU
it makes a multiplication and a sum of each such product, and a grouped product is a loop over all experts there.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx

from .attention import RESHAPES
from .graphs import (
    Editor,
    Refused,
    args,
    aten,
    convert,
    equal,
    is_call,
    is_dense,
    is_known,
    number,
    replace,
    value,
)
from .inductor import grouped_product
from .measured import Shape
from .ops import BY_ROWS, MATVEC, overload, works
from .sorting import choice, sortings

__all__ = [
    "EXPERTS",
    "Order",
    "Product",
    "fuse",
    "fuse_few",
    "grouped",
    "has_few_rows",
    "kind_of",
    "products",
    "shape_of",
]

EXPERTS = "grouped experts"  # as ``explain`` calls it

_iota: Any = torch.ops.prims.iota.default
_VIEWS = (
    aten.permute.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.squeeze.dim,
    aten.unsqueeze.default,
    aten.view.default,
)
# Rows for which the op was measured as faster than a grouped product, if most have an expert of their own: that product
# reads a matrix once for all of its rows.
_FEW = 64
_MOST = 1023  # experts that PyTorch's kernel takes
_ALIGNMENT = 8  # elements: the kernel reads 16 bytes at a time, and rows must begin there
# The compute capabilities that have the kernel. For others PyTorch has a loop, which waits for the device to learn how
# many rows each expert has, and cannot be in a CUDA graph.
_CAPABILITIES = (9, 10)


class Order(NamedTuple):
    """The order of ids: the pairs in it, the place of each pair, and where the pairs of each expert end."""

    pairs: fx.Node
    places: fx.Node
    ends: fx.Node


@dataclass(frozen=True)
class Product:
    """Each of ``rows`` times the matrix of its expert.

    Attributes:
        out: the product, of the shape of ``rows``.
        rows: [rows, 1, n], or [rows, n, 1] where the matrix stands before it.
        dim: the dimension of ``rows`` that has one element; None of a grouped product, whose rows are [rows, n].
        gathered: the copies of the matrices, and the nodes that turn them; none of a grouped product.
        weights: of all experts, three dimensions.
        is_turned: whether the product with ``rows`` on the left takes the transpose of each matrix in ``weights``.
        ids: of the experts, a row's each.
    """

    out: fx.Node
    rows: fx.Node
    dim: int | None
    gathered: tuple[fx.Node, ...]
    weights: fx.Node
    is_turned: bool
    ids: fx.Node


def products(graph: fx.Graph) -> Iterator[Product]:
    """The products with gathered weights of a graph, in its order. Each may be fused before the next is asked for."""
    for node in [node for node in graph.nodes if is_call(node, aten.bmm.default)]:
        left, right = args(node)
        found = _around(node, right, left, 1) or _around(node, left, right, 2)
        if found is not None:
            yield found


def grouped(graph: fx.Graph) -> Iterator[Product]:
    """The grouped products of a graph whose rows are in the order of chosen experts, a row for each choice.

    Each may be fused before the next is asked for.
    """
    for sorting in list(sortings(graph)):
        for node in [user for ends in sorting.results["ends"] for user in ends.users]:
            if not is_call(node, grouped_product()):
                continue
            given = dict(zip(("rows", "weights", "offs", "bias", "out_dtype"), args(node), strict=False)) | node.kwargs
            rows, weights = value(given["rows"]), value(given["weights"])
            if given.get("offs") not in sorting.results["ends"] or given.get("bias") is not None:
                continue
            if rows is None or weights is None or rows.dim() != 2 or node.meta["val"].dtype != rows.dtype:
                continue
            (ids, *_) = sorting.results["expert_ids"]
            has_all = equal(rows.shape[:1], ids.meta["val"].shape)  # others may have rows of no expert behind
            if has_all and weights.dim() == 3 and number(weights.shape[0], sorting.experts):
                yield Product(node, given["rows"], None, (), given["weights"], False, ids)


def has_few_rows(product: Product) -> bool:
    """Whether the op for few rows is for a product, all of whose sizes and strides are known: it does not take any."""
    tensors = [node.meta["val"] for node in (product.rows, product.weights)]
    rows, experts = (tensor.shape[0] for tensor in tensors)
    is_static = all(is_known(x) for tensor in tensors for x in (*tensor.shape, *tensor.stride()))
    return is_static and 0 < rows <= min(_FEW, experts)


def kind_of(product: Product) -> tuple[Any, ...]:
    """The elements of a row and of its product, the dtype and the device."""
    n, m = _sizes(product)
    tensor = product.rows.meta["val"]
    return (f"{n} to {m}", tensor.dtype, tensor.device)


def shape_of(product: Product) -> Shape:
    """The rows of a product."""
    tensor = product.rows.meta["val"]
    return Shape(tensor.shape[0], _sizes(product)[0], tensor.dtype)


def _sizes(product: Product) -> tuple[Any, Any]:
    """The elements of a row and of its product."""
    _, *sizes = product.weights.meta["val"].shape
    return (sizes[1], sizes[0]) if product.is_turned else (sizes[0], sizes[1])


def fuse_few(graph: fx.Graph, product: Product) -> None:
    """Put the op for few rows in the place of a product with gathered weights, or of a grouped one.

    Raises:
        Refused: the graph stays as it is, for a reason.
    """
    if product.gathered:
        _check(product)
    _, m = _sizes(product)
    if product.dim is None and m * product.rows.meta["val"].itemsize % 16 != 0:
        # Whoever takes the result may name this distance.
        raise Refused("each row of its result begins at a multiple of 16 bytes, with a gap before it")
    editor = Editor(graph, product.out)
    try:
        tensor = product.rows.meta["val"]
        rows, weights = product.rows, product.weights
        if product.dim is not None:
            rows = editor.call(aten.squeeze.dim, rows, product.dim)
        if not product.is_turned:
            weights = editor.call(aten.permute.default, weights, [0, 2, 1])
        output = editor.call(aten.empty.memory_format, [tensor.shape[0], m], dtype=tensor.dtype, device=tensor.device)
        given = {"x": rows, "weight": weights, "expert_ids": product.ids}
        values = {name: node.meta["val"] for name, node in {**given, "output": output}.items()}
        most = None if tensor.device.type in BY_ROWS else 1
        if not works(MATVEC, kind_of(product), values, most=most):
            raise Refused(f"{MATVEC} does not take it, or cannot be built")
        (result,) = editor.write(overload(MATVEC), {"output": (output, ())}, given)
        if product.dim is not None:
            result = editor.call(aten.unsqueeze.default, result, product.dim)
    except Refused:
        editor.undo()
        raise
    replace(graph, {product.out: result}, product.gathered)


def fuse(graph: fx.Graph, product: Product, orders: dict[fx.Node, Order]) -> None:
    """Put a grouped product in the place of one with gathered weights.

    Args:
        graph: where it is.
        product: one of ``products``.
        orders: those that are in the graph, by the ids. Products of the same ids share one.

    Raises:
        Refused: the graph stays as it is, for a reason.
    """
    experts = _experts(product)
    known = orders.get(product.ids)
    ordering = Editor(graph, product.ids)
    try:
        order = known or _order(ordering, product.ids, experts)
        editor = Editor(graph, product.out)
        try:
            result = _grouped(editor, product, order)
        except Refused:
            editor.undo()
            raise
    except Refused:
        ordering.undo()
        raise
    orders[product.ids] = order
    replace(graph, {product.out: result}, product.gathered)


def _around(out: fx.Node, matrices: fx.Node, rows: fx.Node, dim: int) -> Product | None:
    """The product of rows and gathered matrices that a node is, if it is one."""
    tensor = value(rows)
    if tensor is None or not number(tensor.shape[dim], 1):
        return None
    gathering, is_turned, gathered = matrices, False, []
    while (turns := _turns(gathering)) is not None:
        gathered.append(gathering)
        gathering, is_turned = args(gathering)[0], is_turned != turns
    gathered.append(gathering)
    if not is_call(gathering, aten.index.Tensor):
        return None
    weights, indices = args(gathering)
    found = value(weights)
    if len(indices) != 1 or found is None or found.dim() != 3:
        return None
    return Product(out, rows, dim, tuple(gathered), weights, is_turned != (dim == 2), indices[0])


def _turns(node: fx.Node) -> bool | None:
    """Whether a node transposes matrices, or gives them as they are, as a product does first; None if neither."""
    if is_call(node, aten.permute.default):
        return True if list(args(node)[1]) == [0, 2, 1] else None
    if is_call(node, aten.expand.default, *RESHAPES):
        before, after = value(args(node)[0]), value(node)
        return False if before is not None and after is not None and equal(before.shape, after.shape) else None
    return None


def _check(product: Product) -> int:
    """The number of experts of a product whose weights need not be gathered.

    Raises:
        Refused: there is a reason against it.
    """
    chosen = choice(product.ids)
    if chosen is None or not number(product.weights.meta["val"].shape[0], chosen[1]):
        # An id that is no expert's would be an error of the gathering, or is another's who has none of these weights.
        raise Refused("its ids are of no choice among just these experts")
    if any(len(node.users) != 1 for node in product.gathered):
        raise Refused("something else takes the gathered weights")
    if not _is_given(product.weights):
        # Then all must be in memory. The compiler computes those of the chosen experts alone.
        raise Refused("its weights are computed in the graph")
    return chosen[1]


def _experts(product: Product) -> int:
    """The number of experts of a product that a grouped one can take the place of.

    Raises:
        Refused: there is a reason against it.
    """
    rows, weights = product.rows.meta["val"], product.weights.meta["val"]
    if not has_kernel(weights.device):
        raise Refused("PyTorch has no kernel for grouped products on this device")
    experts = _check(product)
    if any(x.dtype != torch.bfloat16 for x in (rows, weights)):
        raise Refused("grouped products are compiled in bfloat16 alone")
    if number(rows.shape[0], 0):
        raise Refused("it has no rows")
    sizes = weights.shape[1:]
    places = (*sizes, weights.storage_offset())
    if not all(is_known(x) and x % _ALIGNMENT == 0 for x in places) or number(sizes.numel(), 0):
        raise Refused("its rows do not begin at 16 bytes")
    if not any(map(is_dense, (weights, weights.transpose(1, 2)))) or not is_dense(rows.squeeze(product.dim)):
        raise Refused("its rows or weights have another layout")
    if experts > _MOST:
        raise Refused("it has more experts than the kernel takes")
    return experts


def _is_given(node: fx.Node) -> bool:
    """Whether a value is an input of the graph, or a view of one."""
    while is_call(node, *_VIEWS):
        node = args(node)[0]
    return node.op in ("placeholder", "get_attr")


def has_kernel(device: torch.device) -> bool:
    """Whether PyTorch has a kernel of grouped products for a device."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device)[0] in _CAPABILITIES


def _order(editor: Editor, ids: fx.Node, experts: int) -> Order:
    """The order of ids, in the form that the pass for it looks for."""
    device, rows = ids.meta["val"].device, editor.size(ids, 0)
    by_expert = editor.call(aten.sort.default, ids)
    sorted_ids, pairs = (editor.call(operator.getitem, by_expert, i) for i in range(2))
    # A histogram takes numbers with a fraction alone on a CPU, and integers alone on CUDA where algorithms must be
    # deterministic.
    wide = editor.call(convert, sorted_ids, torch.float32 if device.type == "cpu" else torch.int32)
    histogram = editor.call(aten.histc.default, wide, experts, 0, experts - 1)
    ends = editor.call(aten.cumsum.default, histogram, 0, dtype=torch.int32)
    memory = editor.call(aten.empty.memory_format, [rows], dtype=torch.int64, device=device)
    options = {"start": 0, "step": 1, "dtype": torch.int64, "device": device, "requires_grad": False}
    rising = editor.call(_iota, rows, **options)
    return Order(pairs, editor.call(aten.index_put.default, memory, [pairs], rising), ends)


def _grouped(editor: Editor, product: Product, order: Order) -> fx.Node:
    """The same product, grouped."""
    rows = editor.call(aten.squeeze.dim, product.rows, product.dim)
    rows = editor.call(aten.index.Tensor, rows, [order.pairs])
    weights = product.weights
    if product.is_turned:
        weights = editor.call(aten.permute.default, weights, [0, 2, 1])
    result = editor.call(grouped_product(), rows, weights, order.ends)
    result = editor.call(aten.index.Tensor, result, [order.places])
    return editor.call(aten.unsqueeze.default, result, product.dim)
