"""How are the places of new tokens in the caches of all layers computed in one kernel?

Each layer of a static cache counts its tokens in a tensor of its own, and computes the places of new tokens from it.
The compiler makes a kernel of that for each layer, as other kernels are between them.

Rejected: to advance all counters by one list operation, ``torch._foreach_add``. Inductor gives each of its writes a
block of a kernel, and may put the code that reads several counters into one of these blocks. Then another block may
have advanced a counter before it is read, and a token is stored one place too far: so it was seen, in one of many runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from .graphs import Editor, aten, is_known

__all__ = ["Stacks", "drop_unused", "stacked"]

# By the places of a layer's tokens and the length of its cache, those of several layers [layers, tokens], and the row.
Stacks = dict[tuple[fx.Node, int], tuple[fx.Node, int]]

_MOST = 16  # nodes that compute the places of a layer


def stacked(graph: fx.Graph, places: Iterable[tuple[fx.Node, int]]) -> Stacks:
    """Put the places of the tokens in each layer's cache into one tensor, where nothing but inputs gives them.

    Args:
        graph: the nodes that compute places are moved to its start.
        places: nodes of [tokens], each with the length of the cache that they are in.
    """
    sources = {one: found for one in dict.fromkeys(places) if (found := _sources(one[0])) is not None}
    groups = defaultdict[Any, list[fx.Node]](list)
    for node, length in sources:
        tensor = node.meta["val"]
        if tensor.dim() == 1 and is_known(tensor.shape[0]):
            groups[length, tensor.shape, tensor.dtype, tensor.device].append(node)
    rows: Stacks = {}
    for (length, *_), nodes in groups.items():
        if len(nodes) > 1:
            own = {source for node in nodes for source in sources[node, length]}
            moved = [node for node in graph.nodes if node in own]
            Editor(graph, [node for node in graph.nodes if node.op == "placeholder"][-1]).move_here(moved)
            editor = Editor(graph, moved[-1])
            stack = editor.call(aten.reshape.default, editor.call(aten.cat.default, nodes), [len(nodes), -1])
            rows |= {(node, length): (stack, row) for row, node in enumerate(nodes)}
    return rows


def drop_unused(graph: fx.Graph, stacks: Stacks) -> None:
    """Take the tensors of places away that nothing takes."""
    for stack in {stack for stack, _ in stacks.values() if not stack.users}:
        (parts,) = stack.all_input_nodes
        graph.erase_node(stack)
        graph.erase_node(parts)


def _sources(node: fx.Node) -> set[fx.Node] | None:
    """A node with all that it is computed from, but for inputs; None where that is much, or random."""
    found, new = set[fx.Node](), [node]
    while new:
        one = new.pop()
        if one.op == "placeholder" or one in found:
            continue
        tags = getattr(one.target, "tags", None)
        if (
            one.op != "call_function"
            or tags is None
            or torch.Tag.nondeterministic_seeded in tags
            or len(found) == _MOST
        ):
            return None
        found.add(one)
        new += one.all_input_nodes
    return found or None
