"""How do the norm of heads, their rotation and the store to a static cache become one launch?

The heads of q and of k are one program. Their angles go in as a table with a row for each token, made once in a graph.
A cache of transformers is [batch, heads, length, size]. For one sequence it is slots [length, heads, size] by strides
alone. For several, each head of k is a token of its own: the cache is [batch * heads * length, 1, size], and as many
heads of q go with each head of k as there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from .counters import Stacks
from .graphs import (
    Editor,
    Refused,
    Values,
    args,
    aten,
    ends_a_kernel,
    equal,
    is_call,
    is_dense,
    is_known,
    leaks,
    number,
    replace,
    same_layout,
    same_shape,
    value,
)
from .norms import Norm
from .ops import HEADS, overload, works
from .rotations import Rotation

__all__ = ["Heads", "Store", "Tables", "differ", "fuse", "heads_of", "kind_of", "store_of"]

_prims: Any = torch.ops.prims


@dataclass(frozen=True)
class Heads:
    """The heads of q or of k: normalised or not, and rotated.

    Attributes:
        source: what is normalised, or else rotated.
        by_token: whether ``source`` is [batch, sequence, heads, size]; else heads come before the sequence.
    """

    rotation: Rotation
    norm: Norm | None
    source: fx.Node
    by_token: bool
    nodes: frozenset[fx.Node]

    @property
    def out(self) -> fx.Node:
        return self.rotation.out

    def sizes(self) -> tuple[Any, Any, Any, int]:
        """The sizes of the batch, the sequence, the heads and a head, as the graph knows them."""
        shape = self.rotation.x.meta["val"].shape
        heads = self.rotation.heads
        return shape[0], shape[3 - heads], shape[heads], int(shape[3])


@dataclass(frozen=True)
class Store:
    """The rotated heads of k, and v, go to static caches, which are inputs that the graph writes.

    Attributes:
        k, v: the nodes that are the caches after it.
        k_cache, v_cache: the inputs.
        value: [batch, heads, sequence, size], what is stored of v.
        positions: [sequence], the places of the tokens in the caches.
    """

    k: fx.Node
    v: fx.Node
    k_cache: fx.Node
    v_cache: fx.Node
    value: fx.Node
    positions: fx.Node

    @property
    def length(self) -> int:
        """The places of a cache."""
        return int(self.k_cache.meta["val"].shape[2])


@dataclass
class Tables:
    """Nodes that all layers of a graph share: the angles, and the places of tokens.

    Attributes:
        made: by what they are of.
        stacks: the places of several layers.
        keeps_constants: whether the graph may have tensors of its own.
    """

    made: dict[Any, fx.Node] = field(default_factory=dict)
    stacks: Stacks = field(default_factory=dict)
    keeps_constants: bool = True


def heads_of(rotation: Rotation, norms: dict[fx.Node, Norm]) -> Heads | None:
    """The heads that a rotation turns, with the norm before it; None if others take a value inside of it."""
    x, nodes = rotation.x, set(rotation.nodes)
    by_token = rotation.heads == 2
    if is_call(x, aten.permute.default) and rotation.heads == 1 and list(args(x)[1]) == [0, 2, 1, 3]:
        by_token = True
        nodes.add(x)
        x = args(x)[0]
    norm = norms.get(x)
    if norm is not None:
        nodes |= norm.nodes
        x = norm.x
    if leaks(nodes, {rotation.out} | (norm.shared if norm else frozenset())):
        return None
    return Heads(rotation, norm, x, by_token, frozenset(nodes))


def kind_of(q: Heads, k: Heads) -> tuple[Any, ...]:
    """The numbers, the size, the dtype and the device of the heads of q and k."""
    first = q.source.meta["val"]
    return (f"{q.sizes()[2]} + {k.sizes()[2]} heads of {q.sizes()[3]}", first.dtype, first.device)


def store_of(k: Heads, rotated: set[fx.Node]) -> Store | None:
    """Where the rotated heads of k go, and v with them; None where that is no static cache.

    Args:
        k: the heads.
        rotated: the results of all rotations, none of which is v.
    """
    first = next((user for user in k.out.users if is_call(user, aten.index_put.default)), None)
    if first is None or k.rotation.heads != 1:
        return None
    k_cache, positions = _written(first, k.out)
    if k_cache is None:
        return None
    for second in positions.users:
        if not is_call(second, aten.index_put.default) or args(second)[2] in rotated:
            continue
        v_cache, same = _written(second, args(second)[2])
        if v_cache is not None and v_cache is not k_cache and same is positions:
            if v_cache.meta["val"].shape[2] != k_cache.meta["val"].shape[2]:  # one list of slots is for both
                continue
            v, k_value = args(second)[2].meta["val"], k.out.meta["val"]
            if v.dtype == k_value.dtype and equal(v.shape[:3], k_value.shape[:3]):
                return Store(first, second, k_cache, v_cache, args(second)[2], positions)
    return None


def _written(put: fx.Node, heads: Any) -> tuple[fx.Node | None, Any]:
    """The cache of ``index_put(cache, [None, None, positions], heads)``, if it is an input that is written so."""
    cache, indices, *rest = args(put)
    if rest not in ([heads], [heads, False]) or put.kwargs or len(indices) != 3 or indices[:2] != [None, None]:
        return None, None
    positions: Any = indices[2]
    tensor, places, source = value(cache), value(positions), value(heads)
    if tensor is None or places is None or source is None or cache.op != "placeholder":
        return None, None
    end = [user for user in cache.users if user is not put]
    if len(end) != 1 or not is_call(end[0], aten.copy_.default) or args(end[0]) != (cache, put):
        return None, None
    if tensor.dim() != 4 or source.dim() != 4 or not all(is_known(size) for size in tensor.shape):
        return None, None
    fits = tensor.dtype == source.dtype and equal(
        (*tensor.shape[:2], places.shape[0], tensor.shape[3]) if places.dim() == 1 else (), source.shape
    )
    whole = is_dense(tensor) and tensor.storage_offset() == 0
    counted = places.dtype in (torch.int32, torch.int64)
    return (cache, positions) if fits and whole and counted else (None, None)


def differ(q: Heads, k: Heads) -> str:
    """Why two sets of heads cannot be one program; empty if they can."""
    one, two = q.rotation, k.rotation
    if (one.cos, one.sin, one.heads) != (two.cos, two.sin, two.heads) or not equal(q.sizes()[:2], k.sizes()[:2]):
        return "q and k have other angles or tokens"
    if q.sizes()[3] != k.sizes()[3] or q.source.meta["val"].dtype != k.source.meta["val"].dtype:
        return "q and k have heads of other sizes or dtypes"
    norms = [heads.norm and (heads.norm.eps, heads.norm.plus_one) for heads in (q, k)]
    if norms[0] != norms[1]:
        return "q and k have other norms"
    if not all(is_known(size) for size in (q.sizes()[2], k.sizes()[2])):
        return "the number of its heads is not known"
    return ""


def _check(values: Values, q: Heads, k: Heads) -> None:
    """Whether two sets of heads may be overwritten.

    Raises:
        Refused: they may not.
    """
    if values.owner(q.source) is values.owner(k.source):
        raise Refused("q and k share memory")
    for heads in (q, k):
        owner = values.owner(heads.source)
        if not ends_a_kernel(owner):
            raise Refused("its heads are computed by code that the compiler fuses with them")
        if values.readers(heads.source) - heads.nodes:
            raise Refused("its heads are needed elsewhere, which an op in place would have to copy")


def fuse(graph: fx.Graph, q: Heads, k: Heads, store: Store | None, tables: Tables) -> None:
    """Put an op in the place of a chain.

    Raises:
        Refused: the graph stays as it is, for a reason.
    """
    values = Values(graph)
    own = q.nodes | k.nodes | ({store.k, store.v} if store else set())
    inputs = {q.source, k.source, q.rotation.cos, q.rotation.sin}
    inputs |= {heads.norm.weight for heads in (q, k) if heads.norm}
    inputs |= {store.value, store.positions, store.k_cache, store.v_cache} if store else set()
    results = [q.out, k.out, *((store.k, store.v) if store else ())]
    place, late = values.place(inputs, results, own)
    _check(values, q, k)
    # A table that another chain has made may come too late for this one.
    before = values.order[place]
    made = {key: node for key, node in tables.made.items() if values.order[node] <= before}
    stacks = {key: row for key, row in tables.stacks.items() if values.order[row[0]] <= before}
    earlier = Tables(made, stacks, tables.keeps_constants)
    editor = Editor(graph, place)
    try:
        news = _put(editor, q, k, store, earlier)
        for old, new in zip(results, news, strict=True):
            if not same_shape(old.meta["val"], new.meta["val"]):
                raise Refused("its result would have another shape")
            if not same_layout(old.meta["val"], new.meta["val"]) and values.has_strides_by_number(old):
                raise Refused("its result would have other strides, which something names")
    except Refused:
        editor.undo()
        raise
    tables.made |= earlier.made
    editor.move_here(late)
    replace(graph, dict(zip(results, news, strict=True)), own)


def _put(editor: Editor, q: Heads, k: Heads, store: Store | None, tables: Tables) -> list[fx.Node]:
    """The nodes of the new values of q, k and the caches."""
    groups = 1
    if store is not None and not number(k.sizes()[0], 1):
        groups = k.sizes()[2]
        if q.sizes()[2] % groups:
            raise Refused("its heads of q are not a multiple of those of k")
    op = HEADS[q.norm is not None, store is not None]
    rows = [_rows(editor, heads.source, heads.by_token, groups) for heads in (q, k)]
    written: dict[str, Any] = {"q": (rows[0], ()), "k": (rows[1], ())}
    rest: dict[str, Any] = {
        "cos_sin_cache": _angles(editor, q.rotation, tables),
        "positions": _tokens(editor, q, groups, tables),
        "is_neox": True,
    }
    if q.norm is not None and k.norm is not None:
        rest |= {"q_weight": q.norm.weight, "k_weight": k.norm.weight, "eps": q.norm.eps, "gemma": q.norm.plus_one}
    if store is not None:
        rest["v"] = _rows(editor, store.value, False, groups)
        rest["out_loc"] = _slots(editor, store, groups, tables)
        written["k_cache"] = (store.k_cache, _slots_view(store.k_cache, groups))
        written["v_cache"] = (store.v_cache, _slots_view(store.v_cache, groups))
    _try(op, q, k, written, rest)
    results = editor.write(overload(op), written, rest)
    shape = _batch_and_sequence(editor, q)
    news = []
    for heads, result in zip((q, k), results[:2], strict=True):
        _, _, count, size = heads.sizes()
        by_token = editor.view(result, *shape, count, size)
        news.append(
            by_token if heads.rotation.heads == 2 else editor.call(aten.permute.default, by_token, [0, 2, 1, 3])
        )
    return [*news, *results[2:]]


def _try(op: str, q: Heads, k: Heads, written: dict[str, Any], rest: dict[str, Any]) -> None:
    """Whether the op takes these tensors.

    Raises:
        Refused: it does not, or it cannot be built.
    """
    arguments = {name: x.meta["val"] if isinstance(x, fx.Node) else x for name, x in rest.items()}
    for name, (base, view) in written.items():
        fake = base.meta["val"]
        arguments[name] = fake.as_strided(*view) if view else fake
    if not works(op, kind_of(q, k), arguments):
        raise Refused(f"{op} does not take it, or cannot be built")


def _batch_and_sequence(editor: Editor, heads: Heads) -> list[Any]:
    """Both sizes, of the source: what the chain computes from it may stand behind the op."""
    return [editor.size(heads.source, 0), editor.size(heads.source, 1 if heads.by_token else 2)]


def _rows(editor: Editor, node: fx.Node, by_token: bool, groups: int) -> fx.Node:
    """Heads as [tokens, heads, size]; with several groups, each group of heads as a token of its own."""
    if not by_token:
        permuted = is_call(node, aten.permute.default) and list(args(node)[1]) == [0, 2, 1, 3]
        node = args(node)[0] if permuted else editor.call(aten.permute.default, node, [0, 2, 1, 3])
    heads, size = (int(x) for x in node.meta["val"].shape[2:])
    return editor.view(node, -1, heads // groups, size)


def _once(tables: Tables, key: Any, make: Any) -> fx.Node:
    if key not in tables.made:
        tables.made[key] = make()
    return tables.made[key]


def _angles(editor: Editor, rotation: Rotation, tables: Tables) -> fx.Node:
    """The cosines of each token's pairs, then the sines: [tokens, size]."""
    pairs = int(rotation.x.meta["val"].shape[3]) // 2

    def make() -> fx.Node:
        parts = []
        for node in (rotation.cos, rotation.sin):
            flat = editor.call(aten.squeeze.dim, node, rotation.heads) if rotation.wide else node
            whole = number(flat.meta["val"].shape[-1], pairs)
            parts.append(flat if whole else editor.call(aten.slice.Tensor, flat, 2, 0, pairs))
        return editor.call(aten.reshape.default, editor.call(aten.cat.default, parts, -1), [-1, 2 * pairs])

    return _once(tables, (rotation.cos, rotation.sin, pairs, rotation.heads if rotation.wide else 0), make)


def _counting(editor: Editor, length: Any, device: torch.device) -> fx.Node:
    return editor.call(
        _prims.iota.default, length, start=0, step=1, dtype=torch.int64, device=device, requires_grad=False
    )


def _tokens(editor: Editor, heads: Heads, groups: int, tables: Tables) -> fx.Node:
    """The row of the angles for each token, or each group of its heads."""
    device = heads.source.meta["val"].device
    batch, sequence, _, _ = heads.sizes()
    several = not equal(heads.rotation.cos.meta["val"].shape[:1], (1,))

    def make() -> fx.Node:
        sizes = _batch_and_sequence(editor, heads)
        if tables.keeps_constants and all(is_known(size) for size in sizes):
            rows = torch.arange(sizes[0] * sizes[1], device=device)
            each = rows if several else rows % sizes[1]
            # As a column: the compiler would write a short row into each kernel that takes it, and copy it for each op.
            return editor.view(editor.constant(each.repeat_interleave(groups)[:, None]), -1)
        own = sizes if several else [1, sizes[1]]
        count = _counting(editor, editor.product(*own), device)
        every = editor.call(aten.expand.default, editor.call(aten.reshape.default, count, [*own, 1]), [*sizes, groups])
        dense = editor.call(aten.clone.default, every, memory_format=torch.contiguous_format)
        return editor.call(aten.reshape.default, dense, [-1])

    return _once(tables, ("tokens", str(batch), str(sequence), groups, several, device), make)


def _slots(editor: Editor, store: Store, groups: int, tables: Tables) -> fx.Node:
    """The slot of each token, or of each group of its heads.

    ``index_put`` counts a negative position from the end and refuses one that is not there; so does ``index`` here.
    """
    places, row = tables.stacks.get((store.positions, store.length), (store.positions, None))

    def make() -> fx.Node:
        batch, _, length, _ = (int(size) for size in store.k_cache.meta["val"].shape)
        device = store.k_cache.meta["val"].device
        checked = editor.call(aten.index.Tensor, _counting(editor, length, device), [places])
        if groups == 1 and batch == 1:
            return checked
        layers = places.meta["val"].shape[:-1]
        first = editor.call(aten.mul.Tensor, _counting(editor, batch * groups, device), length)
        of_heads = editor.call(aten.reshape.default, first, [batch, 1, groups])
        of_tokens = editor.call(aten.reshape.default, checked, [*layers, 1, -1, 1])
        return editor.call(aten.reshape.default, editor.call(aten.add.Tensor, of_heads, of_tokens), [*layers, -1])

    key = ("slots", places, tuple(store.k_cache.meta["val"].shape[:3]), groups)
    slots = _once(tables, key, make)
    return slots if row is None else editor.call(aten.select.int, slots, 0, row)


def _slots_view(cache: fx.Node, groups: int) -> tuple[Any, ...]:
    """A cache [batch, heads, length, size] as [slots, heads, size]: its size, strides and offset."""
    batch, heads, length, size = (int(x) for x in cache.meta["val"].shape)
    offset = int(cache.meta["val"].storage_offset())
    if batch == 1 and groups == 1:
        return [length, heads, size], [size, length * size, 1], offset
    return [batch * heads * length, 1, size], [size, size, 1], offset
