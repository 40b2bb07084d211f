"""How does the order of a token's experts, by which grouped matrix products take their rows, become one launch?

A sort of the ids gives the order; a histogram of the sorted ids and its running sum give where the rows of each expert
end; and an order may be turned round, to bring the results back. The op writes all of these. The ids must be of a
choice among so many experts as the histogram counts: then no other id can be there.

Pairs with the same expert keep their order. PyTorch's sort promises none for these, and each is right: a pair takes its
row with it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from .graphs import (
    Editor,
    Refused,
    args,
    aten,
    convert,
    is_call,
    is_dense,
    is_known,
    leaks,
    number,
    replace,
    same_shape,
    value,
)
from .ops import SORTING, overload, works

__all__ = ["Sorting", "choice", "fuse", "kind_of", "sortings"]

_iota: Any = torch.ops.prims.iota.default
_SORTS = (aten.sort.default, aten.sort.stable)
_VIEWS = (aten.reshape.default, aten.view.default)


@dataclass(frozen=True)
class Sorting:
    """A sort of the ``ids`` of chosen experts, and what is computed of it.

    Attributes:
        ids: [tokens, k], int64.
        results: by argument of the op, the nodes with its values; the sort's own, and the others' where they are.
        nodes: the nodes that compute them from the ids, and that nothing else may take; the results are among them.
    """

    sort: fx.Node
    ids: fx.Node
    experts: int
    results: dict[str, list[fx.Node]]
    nodes: frozenset[fx.Node]


def kind_of(sorting: Sorting) -> tuple[Any, ...]:
    """The experts of a token and of all, and the device."""
    ids = sorting.ids.meta["val"]
    return (f"{ids.shape[1]} of {sorting.experts} experts", ids.device)


def sortings(graph: fx.Graph) -> Iterator[Sorting]:
    """The sorted choices of a graph, in its order. Each may be fused before the next is asked for."""
    for node in [node for node in graph.nodes if is_call(node, *_SORTS)]:
        found = _around(node)
        if found is not None:
            yield found


def fuse(graph: fx.Graph, sorting: Sorting) -> None:
    """Put the op in the place of a sort.

    Raises:
        Refused: the graph stays as it is, for a reason.
    """
    results = {node for nodes in sorting.results.values() for node in nodes}
    if leaks(sorting.nodes, results):
        raise Refused("something takes a value inside of it, such as the histogram")
    editor = Editor(graph, sorting.sort)
    ids = sorting.ids
    device = ids.meta["val"].device
    try:
        pairs = editor.product(editor.size(ids, 0), editor.size(ids, 1))
        outputs = {
            name: editor.call(aten.empty.memory_format, [size], dtype=torch.int32, device=device)
            for name, size in (("pairs", pairs), ("expert_ids", pairs), ("places", pairs), ("ends", sorting.experts))
        }
        if not works(SORTING, kind_of(sorting), _of_one_token(editor, sorting), most=sorting.experts):
            raise Refused(f"{SORTING} does not take it, or cannot be built")
        written = editor.write(overload(SORTING), {name: (x, ()) for name, x in outputs.items()}, {"topk_ids": ids})
        made = {}
        for name, new in zip(outputs, written, strict=True):
            for old in sorting.results.get(name, ()):
                dtype = old.meta["val"].dtype
                made[old] = new if dtype == torch.int32 else editor.call(convert, new, dtype)
    except Refused:
        editor.undo()
        raise
    # The numbers from 0 on, and the memory that they go to, if nothing else takes them.
    sources = {source for node in sorting.results["places"] for source in node.all_input_nodes}
    replace(graph, made, sorting.nodes | {source for source in sources if source.op == "call_function"})


def _of_one_token(editor: Editor, sorting: Sorting) -> dict[str, torch.Tensor]:
    """The arguments of the op for one token: the sizes of all but ``ends`` follow from the number of tokens."""
    ids = sorting.ids.meta["val"]
    k = ids.shape[1]
    with editor.mode:
        outputs = {
            name: torch.empty(k, dtype=torch.int32, device=ids.device) for name in ("pairs", "expert_ids", "places")
        }
        ends = torch.empty(sorting.experts, dtype=torch.int32, device=ids.device)
        return {"topk_ids": torch.empty(1, k, dtype=ids.dtype, device=ids.device), **outputs, "ends": ends}


def _around(sort: fx.Node) -> Sorting | None:
    """The sorted choice that a sort is of, if its order is used for groups of rows."""
    if len(sort.args) != 1 or sort.kwargs.keys() - {"stable"}:
        return None
    found = choice(args(sort)[0])
    if found is None:
        return None
    chosen, experts = found
    halves = {args(user)[1]: user for user in sort.users if is_call(user, operator.getitem)}
    if len(halves) != len(sort.users) or halves.keys() != {0, 1}:
        return None
    sorted_ids, order = halves[0], halves[1]
    results = {"expert_ids": [sorted_ids], "pairs": [order], "places": list(_inverses(order)), "ends": []}
    inner = {sort, sorted_ids, order, *results["places"]}
    for ends, between in _ends(sorted_ids, experts):
        results["ends"].append(ends)
        inner |= {ends, *between}
    return Sorting(sort, chosen, experts, results, frozenset(inner)) if results["ends"] else None


def choice(flat: Any) -> tuple[fx.Node, int] | None:
    """The ids of a choice, [tokens, k], that a value has in one line, and among how many experts they are."""
    if not is_call(flat, *_VIEWS):
        return None
    chosen, tensor, line = args(flat)[0], value(args(flat)[0]), value(flat)
    experts = _number_of_choices(chosen)
    if experts is None or tensor is None or line is None or line.dim() != 1 or not is_dense(tensor):
        return None
    return (chosen, experts) if tensor.dim() == 2 and is_known(tensor.shape[1]) else None


def _number_of_choices(ids: Any) -> int | None:
    """Among how many experts the ids of a choice are; None if they are of no choice, or the number is not known."""
    if not is_call(ids, operator.getitem) or args(ids)[1] != 1 or not is_call(args(ids)[0], aten.topk.default):
        return None
    topk = args(ids)[0]
    given, dim = value(args(topk)[0]), dict(enumerate(args(topk))).get(2, -1)
    if given is None or given.dim() != 2 or dim not in (-1, 1) or topk.kwargs or not is_known(given.shape[1]):
        return None
    return int(given.shape[1])


def _ends(sorted_ids: fx.Node, experts: int) -> Iterator[tuple[fx.Node, list[fx.Node]]]:
    """The running sums of the histograms of sorted ids, of int32, and the nodes between."""
    for user in sorted_ids.users:
        wide = user if is_call(user, convert) and _counts_exactly(user) else None
        for histogram in wide.users if wide is not None else [user]:
            if not is_call(histogram, aten.histc.default) or histogram.kwargs:
                continue
            if args(histogram)[1:] != (experts, 0, experts - 1):
                continue
            for ends in histogram.users:
                if is_call(ends, aten.cumsum.default) and ends.meta["val"].dtype == torch.int32:
                    yield ends, [histogram, *([] if wide is None else [wide])]


def _counts_exactly(node: fx.Node) -> bool:
    """Whether a conversion keeps the number of an expert, of which there are 2048 at most."""
    return args(node)[1] in (torch.int32, torch.int64, torch.float32, torch.float64)


def _inverses(order: fx.Node) -> Iterator[fx.Node]:
    """The nodes that turn an order round: 0, 1, 2 and so on, written to the places that it names."""
    for node in order.users:
        if not is_call(node, aten.index_put.default) or node.kwargs or len(node.args) != 3:
            continue
        base, places, numbers = args(node)
        if list(places) != [order] or not is_call(numbers, _iota):
            continue
        counts_up = number(numbers.kwargs["start"], 0) and number(numbers.kwargs["step"], 1)
        found, rising = base.meta["val"], numbers.meta["val"]
        if counts_up and same_shape(found, rising, order.meta["val"]):
            yield node
