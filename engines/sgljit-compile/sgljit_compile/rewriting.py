"""Which chains of a graph run on ops of ours, and why not the others?"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping

from torch import fx

from . import add_norm, attention, counters, experts, formulas, heads, routing, sinks, sorting, windows
from .adapter import ADAPTER
from .graphs import Refused, needs
from .heads import Heads, Tables
from .measured import Shape, why_not
from .norms import has_unknown_eps, norms
from .ops import HEADS, MATVEC, ROUTING, SORTING, WINDOW
from .records import Graph
from .rotations import rotations

__all__ = ["rewrite"]

_UNKNOWN = "its eps is an input, as with dynamic=True, or for a second eps in a class of layers (specialize_float)"


def rewrite(graph: fx.Graph, ops: Mapping[str, frozenset[str]], record: Graph, has_regions: bool = False) -> None:
    """Put ops in the place of the chains of a graph.

    Args:
        graph: an ATen graph without writes.
        ops: the ops that may be used, each with the types of devices that it may be used on.
        record: gets what was done.
        has_regions: whether this may be a part of another graph, such as a region that is compiled once for many calls.
            Inductor binds the constants of whole graphs alone.
    """
    _formulas(graph, record)
    _add_norms(graph, _heads(graph, ops, record, has_regions), ops, record)
    _windows(graph, ops, record)
    _attention(graph, ops, record)
    _experts(graph, ops, record)
    _sortings(graph, ops, record)
    _routings(graph, ops, record)


def _formulas(graph: fx.Graph, record: Graph) -> None:
    """Leave single ops that a user calls to the compiler, where it can fuse their formulas with what is around them."""
    for call in formulas.calls(graph):
        with contextlib.suppress(Refused):
            formulas.fuse(graph, call)
            record.left[call.op, "the compiler fuses its formula with what is around it"] += 1


def _heads(graph: fx.Graph, ops: Mapping[str, frozenset[str]], record: Graph, has_regions: bool) -> set[fx.Node]:
    """Fuse the chains of heads, two neighbours at a time; the results of all norms of heads, fused or not."""
    by_result = {norm.out: norm for norm in norms(graph)}
    found = [heads.heads_of(rotation, by_result) for rotation in rotations(graph)]
    of_heads = {one.norm.out for one in found if one is not None and one.norm is not None}
    rotated = {one.out for one in found if one is not None}
    stacks = counters.stacked(graph, _places(found, rotated, ops))
    tables = Tables(stacks=stacks, keeps_constants=not has_regions)
    while found:
        one, other = found[0], found[1] if len(found) > 1 else None
        reason = "q and k are not side by side"
        if one is None:
            reason = "something takes a value inside of it"
        elif other is not None and not needs(other.source, one.out) and not (reason := heads.differ(one, other)):
            _pair(graph, one, other, rotated, ops, record, tables)
            del found[:2]
            continue
        record.left["rope", reason] += 1
        del found[0]
    counters.drop_unused(graph, tables.stacks)
    return of_heads


def _places(
    found: list[Heads | None], rotated: set[fx.Node], ops: Mapping[str, frozenset[str]]
) -> Iterator[tuple[fx.Node, int]]:
    """The places of the tokens in the caches of layers that may be stored to, with the caches' lengths."""
    for one in found:
        store = None if one is None else heads.store_of(one, rotated)
        if one is None or store is None:
            continue
        if store.k_cache.meta["val"].device.type in ops.get(HEADS[one.norm is not None, True], ()):
            yield store.positions, store.length


def _pair(
    graph: fx.Graph,
    q: Heads,
    k: Heads,
    rotated: set[fx.Node],
    ops: Mapping[str, frozenset[str]],
    record: Graph,
    tables: Tables,
) -> None:
    """Fuse the heads of q and k, with the store where the graph has it."""
    store = heads.store_of(k, rotated)
    if store is None and (store := heads.store_of(q, rotated)) is not None:
        q, k = k, q
    for stores in (store, None) if store is not None else (None,):
        op = HEADS[q.norm is not None, stores is not None]
        fuse = functools.partial(heads.fuse, graph, q, k, stores, tables)
        batch, tokens, _, size = q.sizes()
        shape = Shape(batch * tokens, size, q.source.meta["val"].dtype)
        if _put(ops, record, op, heads.kind_of(q, k), q.source, shape, fuse):
            return


def _add_norms(graph: fx.Graph, others: set[fx.Node], ops: Mapping[str, frozenset[str]], record: Graph) -> None:
    """Fuse each norm behind an addition, but for some others."""
    by_result = {norm.out: norm for norm in norms(graph) if norm.out not in others}
    behind = [norm for norm in by_result.values() if add_norm.is_behind_addition(norm)]
    firsts = {norm.out: first for norm in behind if (first := add_norm.before(norm, by_result)) is not None}
    alone = {norm.out for norm in by_result.values() if norm not in behind}
    replaced: set[fx.Node] = set()
    for norm in behind:
        if norm.x in replaced:
            record.left["norm", "its sum is on an op already, with another norm"] += 1
            continue
        first = firsts.get(norm.out)
        fuse = functools.partial(add_norm.fuse, graph, norm, first)
        op, kind = add_norm.op_of(norm, first), add_norm.kind_of(norm)
        if _put(ops, record, op, kind, norm.x, _rows_of(norm.x), fuse):
            replaced.add(norm.x)
            alone -= {first.out} if first is not None else set()
    if alone:
        record.left["norm", "no addition is right before it"] += len(alone)
    if unknown := sum(map(has_unknown_eps, graph.nodes)):
        record.left["norm", _UNKNOWN] += unknown


def _devices_of_heads(ops: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The types of devices that a chain of heads may be put in on."""
    return frozenset[str]().union(*(ops.get(op, ()) for op in HEADS.values()))


def _attention(graph: fx.Graph, ops: Mapping[str, frozenset[str]], record: Graph) -> None:
    """Leave out the copies of keys and values for each head, on devices where the chains of heads are used.

    Attention with sinks runs on a kernel of attention there.
    """
    devices = _devices_of_heads(ops)
    masks = attention.Masks()
    for one in sinks.attentions(graph):
        if one.out.meta["val"].device.type in devices:
            _sinks(graph, one, masks, record)
    masks = attention.Masks()  # a mask that was written may come too late for those
    for part, node in attention.parts(graph):
        tensor = node.args[0].meta["val"]  # type: ignore[union-attr]
        if tensor.device.type in devices and attention.group(graph, part, node, masks):
            _note(record, part)


def _sinks(graph: fx.Graph, one: sinks.Sinks, masks: attention.Masks, record: Graph) -> None:
    try:
        sinks.fuse(graph, one, masks)
    except Refused as refused:
        _note(record, sinks.SINKS, str(refused))
    else:
        _note(record, sinks.SINKS)


def _windows(graph: fx.Graph, ops: Mapping[str, frozenset[str]], record: Graph) -> None:
    """Fuse the sliding windows of keys and values."""
    for k, v in windows.windows(graph):
        if v is None:
            record.left[ADAPTER.parts[WINDOW], "keys and values are not side by side"] += 1
            continue
        cache, fuse = k.cache.meta["val"], functools.partial(windows.fuse, graph, k, v)
        shape = Shape(cache.shape[0], cache[0].numel(), cache.dtype)
        _put(ops, record, WINDOW, windows.kind_of(k), k.cache, shape, fuse)


def _experts(graph: fx.Graph, ops: Mapping[str, frozenset[str]], record: Graph) -> None:
    """Leave out the copies of the weights of chosen experts: of few rows by an op, else with the order of experts."""
    for one in experts.grouped(graph):  # those of the model: none is made yet
        if experts.has_few_rows(one):
            fuse = functools.partial(experts.fuse_few, graph, one)
            _put(ops, record, MATVEC, experts.kind_of(one), one.out, experts.shape_of(one), fuse)
    orders: dict[fx.Node, experts.Order] = {}
    for one in experts.products(graph):
        if experts.has_few_rows(one):
            fuse = functools.partial(experts.fuse_few, graph, one)
            if _put(ops, record, MATVEC, experts.kind_of(one), one.out, experts.shape_of(one), fuse):
                continue
        if one.out.meta["val"].device.type not in ops.get(SORTING, ()):
            continue
        try:
            experts.fuse(graph, one, orders)
        except Refused as refused:
            _note(record, experts.EXPERTS, str(refused))
        else:
            _note(record, experts.EXPERTS)


def _sortings(graph: fx.Graph, ops: Mapping[str, frozenset[str]], record: Graph) -> None:
    """Fuse the order of the experts of each choice, whose ids must still be of a topk."""
    for one in sorting.sortings(graph):
        fuse = functools.partial(sorting.fuse, graph, one)
        ids = one.ids.meta["val"]
        shape = Shape(ids.shape[0], one.experts, ids.dtype)
        _put(ops, record, SORTING, sorting.kind_of(one), one.ids, shape, fuse)


def _routings(graph: fx.Graph, ops: Mapping[str, frozenset[str]], record: Graph) -> None:
    """Fuse each choice of experts."""
    for one in routing.routings(graph):
        fuse = functools.partial(routing.fuse, graph, one)
        _put(ops, record, ROUTING, routing.kind_of(one), one.gates, _rows_of(one.gates), fuse)


def _rows_of(node: fx.Node) -> Shape:
    """The rows of a value along its last dimension."""
    tensor = node.meta["val"]
    return Shape(math.prod(tensor.shape[:-1]), tensor.shape[-1], tensor.dtype)


def _note(record: Graph, part: str, why: str = "") -> None:
    """Let the record and ``report`` say that a kernel of PyTorch computes a part of a graph, or why it is left."""
    use = ADAPTER.use(f"PyTorch's kernel of {part}", "left" if why else (), part)
    if why:
        record.left[part, why] += 1
        use.why = why
        use.own_calls += 1
    else:
        record.chains[part] += 1
        use.layers += 1


def _put(
    ops: Mapping[str, frozenset[str]],
    record: Graph,
    op: str,
    kind: tuple[object, ...],
    node: fx.Node,
    shape: Shape,
    fuse: Callable[[], object],
) -> bool:
    """Put an op in the place of a chain, by ``fuse``; whether it is there. The record gets it, or why it is not.

    Args:
        kind: what ``report`` calls such a chain.
        node: a value of the chain, on its device.
        shape: what the table of ``measured`` is asked for.
    """
    try:
        if node.meta["val"].device.type not in ops.get(op, ()):
            raise Refused(f"{op} cannot be built" if op in ADAPTER.lost else "switched off")
        if record.only_measured and (reason := why_not(op, shape)):
            raise Refused(reason)
        fuse()
    except Refused as refused:
        record.left[ADAPTER.parts[op], str(refused)] += 1
        use = ADAPTER.use(op, (op, *kind, "left"))
        use.why = str(refused)
        use.own_calls += 1
        return False
    record.chains[ADAPTER.parts[op]] += 1
    ADAPTER.use(op, (op, *kind)).layers += 1
    return True
