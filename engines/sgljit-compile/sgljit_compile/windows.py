"""How does a new token get into a full sliding window in one launch?

A static cache with a window, as transformers has it, keeps its tokens in order: all rows are rolled by one place, the
new ones take the last, and the result is copied into the cache. That is three kernels for keys and three for values.
The op does it in place, for both.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    equal,
    is_call,
    is_dense,
    is_known,
    needs,
    number,
    replace,
    value,
)
from .ops import WINDOW, overload, works

__all__ = ["Window", "fuse", "kind_of", "windows"]

_iota: Any = torch.ops.prims.iota.default


@dataclass(frozen=True)
class Window:
    """A cache that is an input, without its oldest token and with a new one.

    Attributes:
        out: the cache after it, which the graph writes to the input.
        cache: [batch, heads, window, size].
        heads: [batch, heads, 1, size], of the new token; of one sequence also [heads, 1, size].
        nodes: the nodes that compute ``out`` from both.
    """

    out: fx.Node
    cache: fx.Node
    heads: fx.Node
    nodes: frozenset[fx.Node]


def kind_of(window: Window) -> tuple[Any, ...]:
    """The sizes, the dtype and the device of a cache."""
    _, heads, tokens, size = window.cache.meta["val"].shape
    return (
        f"{heads} heads of {size}, {tokens} tokens",
        window.cache.meta["val"].dtype,
        window.cache.meta["val"].device,
    )


def windows(graph: fx.Graph) -> Iterator[tuple[Window, Window | None]]:
    """The windows of a graph, two neighbours of one shape at a time: those of keys and of values.

    A window without such a neighbour comes with None.
    """
    waiting: Window | None = None
    for node in list(graph.nodes):
        found = _around(node) if is_call(node, aten.index_put.default) else None
        if found is None:
            continue
        if waiting is not None and _are_alike(waiting, found) and not needs(found.heads, waiting.out):
            yield waiting, found
            waiting = None
        else:
            if waiting is not None:
                yield waiting, None
            waiting = found
    if waiting is not None:
        yield waiting, None


def _are_alike(one: Window, other: Window) -> bool:
    a, b = one.cache.meta["val"], other.cache.meta["val"]
    return one.cache is not other.cache and equal(a.shape, b.shape) and (a.dtype, a.device) == (b.dtype, b.device)


def _around(put: fx.Node) -> Window | None:
    """The window whose new token an assignment stores."""
    rolled, indices, heads, *rest = args(put)
    if rest not in ([], [False]) or put.kwargs or len(indices) != 3 or indices[:2] != [None, None]:
        return None
    if not is_call(rolled, aten.index.Tensor) or len(rolled.users) != 1 or len(args(rolled)[1]) != 3:
        return None
    cache, (*outer, order) = args(rolled)
    tensor, new = value(cache), value(heads)
    if outer != [None, None] or cache.op != "placeholder" or tensor is None or new is None or tensor.dim() != 4:
        return None
    length = tensor.shape[2]
    if not all(map(is_known, tensor.shape)) or not is_dense(tensor) or tensor.storage_offset() != 0:
        return None
    batch, count, _, size = tensor.shape
    shapes = [(batch, count, 1, size), *([(count, 1, size)] if batch == 1 else [])]
    if new.dtype != tensor.dtype or not any(equal(new.shape, shape) for shape in shapes):
        return None
    ends = [user for user in cache.users if user is not rolled]
    if len(ends) != 1 or not is_call(ends[0], aten.copy_.default) or args(ends[0]) != (cache, put):
        return None
    if not _counts_from_one(order, length) or not _is_last(indices[2], length):
        return None
    return Window(put, cache, heads, frozenset({put, rolled}))


def _counts_from_one(order: Any, length: int) -> bool:
    """Whether places are 1, 2, ... and at last 0."""
    if not is_call(order, aten.fmod.Scalar, aten.remainder.Scalar) or not number(args(order)[1], length):
        return False
    shifted = args(order)[0]
    if not is_call(shifted, aten.add.Tensor) or shifted.kwargs or not number(args(shifted)[1], 1):
        return False
    count = args(shifted)[0]
    if not is_call(count, _iota) or args(count) != (length,):
        return False
    return bool(count.kwargs["start"] == 0 and count.kwargs["step"] == 1)


def _is_last(place: Any, length: int) -> bool:
    """Whether a tensor of one place names the last."""
    if not is_call(place, aten.full.default) or list(args(place)[0]) != [1]:
        return False
    return number(args(place)[1], -1) or number(args(place)[1], length - 1)


def fuse(graph: fx.Graph, k: Window, v: Window) -> None:
    """Put the op in the place of the windows of keys and values.

    Raises:
        Refused: the graph stays as it is, for a reason.
    """
    values = Values(graph)
    if any(user.op == "output" for window in (k, v) for user in values.readers(window.out)):
        raise Refused("it is a result of the graph, too, which must not be the cache itself")
    own = k.nodes | v.nodes
    place, late = values.place({k.heads, v.heads, k.cache, v.cache}, [k.out, v.out], own)
    editor = Editor(graph, place)
    try:
        tokens = {"k": _rows(editor, k), "v": _rows(editor, v)}
        arguments = {"k_cache": k.cache, "v_cache": v.cache, **tokens}
        if not works(WINDOW, kind_of(k), {name: node.meta["val"] for name, node in arguments.items()}):
            raise Refused(f"{WINDOW} does not take it, or cannot be built")
        news = editor.write(overload(WINDOW), {"k_cache": (k.cache, ()), "v_cache": (v.cache, ())}, tokens)
    except Refused:
        editor.undo()
        raise
    editor.move_here(late)
    replace(graph, dict(zip((k.out, v.out), news, strict=True)), own)


def _rows(editor: Editor, window: Window) -> fx.Node:
    heads = window.heads
    return heads if heads.meta["val"].dim() == 4 else editor.call(aten.unsqueeze.default, heads, 0)
