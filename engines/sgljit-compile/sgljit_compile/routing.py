"""How do the softmax of a router, the choice of the best experts and their weights become one launch?

Two orders are known: a softmax of all gates of a token and its largest values, which may be divided by their sum; and a
softmax of the largest gates. The second is the first with the division.

The op ranks gates, of equal ones the lower index first. Where gates or rounded probabilities are equal, PyTorch's topk
promises no order, and which one it takes may differ. NaN comes last here and first there. So a token with a NaN among
its gates gets other experts, and if the NaN is not among these and the weights are divided by their sum, weights that
are numbers; it has NaN for all weights before. Where all gates of a token are NaN, as behind a product with a NaN, all
weights are NaN in both.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from .graphs import Editor, Refused, args, aten, convert, is_call, is_known, leaks, replace, value
from .norms import DTYPES
from .ops import ROUTING, overload, works
from .softmax import reduces, softmax

__all__ = ["Routing", "fuse", "kind_of", "routings"]


@dataclass(frozen=True)
class Routing:
    """``ids``: the ``k`` experts of each token with the largest of ``gates``; ``weights``: the softmax of these.

    Attributes:
        gates: [tokens, experts].
        renormalizes: whether the weights of a token have a sum of 1.
        nodes: the nodes that compute both from ``gates`` and that nothing else may take; both are among them.
    """

    topk: fx.Node
    k: int
    gates: fx.Node
    weights: fx.Node
    ids: fx.Node
    renormalizes: bool
    nodes: frozenset[fx.Node]


def kind_of(routing: Routing) -> tuple[Any, ...]:
    """The experts of a token and of all, the dtype and the device of the gates."""
    gates = routing.gates.meta["val"]
    return (f"{routing.k} of {gates.shape[1]} experts", gates.dtype, gates.device)


def routings(graph: fx.Graph) -> Iterator[Routing]:
    """The routings of a graph, in its order. Each may be fused before the next is asked for."""
    for node in [node for node in graph.nodes if is_call(node, aten.topk.default)]:
        found = _around(node)
        if found is not None:
            yield found


def fuse(graph: fx.Graph, routing: Routing) -> None:
    """Put the op in the place of a routing.

    Raises:
        Refused: the graph stays as it is, for a reason.
    """
    if leaks(routing.nodes, {routing.weights, routing.ids}):
        raise Refused("something takes a value inside of it, such as all probabilities")
    editor = Editor(graph, routing.topk)
    gates = routing.gates
    try:
        size, device = [editor.size(gates, 0), routing.k], gates.meta["val"].device
        # The compiler allocates these and writes nothing there. An id is int64 in a graph.
        outputs = {
            name: editor.call(aten.empty.memory_format, size, dtype=dtype, device=device)
            for name, dtype in (("topk_weights", torch.float32), ("topk_ids", torch.int64))
        }
        rest = {"gating_output": gates, "renormalize": routing.renormalizes}
        arguments = {name: getattr(x, "meta", {"val": x})["val"] for name, x in (outputs | rest).items()}
        if not works(ROUTING, kind_of(routing), arguments):
            raise Refused(f"{ROUTING} does not take it, or cannot be built")
        weights, ids = editor.write(overload(ROUTING), {name: (base, ()) for name, base in outputs.items()}, rest)
    except Refused:
        editor.undo()
        raise
    replace(graph, {routing.weights: weights, routing.ids: ids}, routing.nodes)


def _around(topk: fx.Node) -> Routing | None:
    """The routing that a choice is of."""
    given = dict(enumerate(args(topk)))  # what it leaves out is -1, largest and sorted
    dim, largest, is_sorted = given.get(2, -1), given.get(3, True), given.get(4, True)
    if dim not in (-1, 1) or not (largest and is_sorted and is_known(given[1])) or topk.kwargs:
        return None
    chosen = value(given[0])
    if chosen is None or chosen.dim() != 2:
        return None
    results = {args(user)[1]: user for user in topk.users if is_call(user, operator.getitem)}
    if len(topk.users) != 2 or results.keys() != {0, 1}:
        return None
    values, ids = results[0], results[1]
    before, after = softmax(given[0]), _softmax_of(values)
    if before is not None:
        gates, inner = before
        if is_call(gates, convert) and args(gates)[0].meta["val"].dtype in DTYPES:
            gates = args(gates)[0]
        divided = _divided(values)
        weights, renormalizes = divided or values, divided is not None
        inner |= {args(weights)[1]} if renormalizes else set()
    elif after is not None:
        gates, (weights, inner), renormalizes = given[0], after, True
    else:
        return None
    if not is_known(gates.meta["val"].shape[1]):
        return None
    return Routing(topk, given[1], gates, weights, ids, renormalizes, inner | {topk, values, ids, weights})


def _softmax_of(values: fx.Node) -> tuple[fx.Node, frozenset[fx.Node]] | None:
    """The softmax by rows of a value, in float32, and the nodes between."""
    node = next((user for user in values.users if is_call(user, convert)), values)
    for target in (aten.sub.Tensor, aten.exp.default, aten.div.Tensor):
        node = next((user for user in node.users if is_call(user, target)), node)
    found = softmax(node)
    return None if found is None else (node, found[1] | {found[0]})


def _divided(values: fx.Node) -> fx.Node | None:
    """The values divided by their sum; None if something takes more than that."""
    total = next((user for user in values.users if reduces(user, aten.sum.dim_IntList, values)), None)
    result = next((user for user in values.users if is_call(user, aten.div.Tensor)), None)
    if total is None or result is None or args(result) != (values, total):
        return None
    return result if len(values.users) == 2 and len(total.users) == 1 else None
