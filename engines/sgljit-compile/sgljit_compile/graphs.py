"""What does a value of an ATen graph look like, who shares its memory, and how are nodes put in?

A graph here is what inductor has after its own decompositions: ATen and prims ops without writes, and ``copy_`` at the
end for each input that is written. So a value is what its node computes, whatever the source looked like, and the order
of reads and writes is that of the values.
"""

from __future__ import annotations

import itertools
import operator
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.multiprocessing.reductions import StorageWeakRef

from .inductor import writing

__all__ = [
    "Editor",
    "Refused",
    "Values",
    "args",
    "aten",
    "convert",
    "ends_a_kernel",
    "equal",
    "is_call",
    "is_dense",
    "is_known",
    "leaks",
    "needs",
    "number",
    "pairs",
    "replace",
    "same_layout",
    "same_shape",
    "value",
]

aten: Any = torch.ops.aten
convert: Any = torch.ops.prims.convert_element_type.default


class Refused(Exception):  # noqa: N818 - no failure: the compiler keeps the chain
    """A chain stays the compiler's; the text says why."""


def is_call(node: Any, *targets: Any) -> bool:
    """Whether a node calls one of some functions."""
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target in targets


_MATRIX_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_grouped_mm", "_int_mm"})
_GENERATED = ("aten", "prims")  # the namespaces of ops that the compiler generates code for


def ends_a_kernel(node: fx.Node) -> bool:
    """Whether a value lies in memory in any case: a matrix product, and what an op of a library returns."""
    if node.op != "call_function":
        return False
    if is_call(node, operator.getitem):
        return ends_a_kernel(args(node)[0])
    namespace = getattr(node.target, "namespace", "")
    name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
    return namespace not in ("", *_GENERATED) or name in _MATRIX_PRODUCTS


def needs(node: fx.Node, result: fx.Node) -> bool:
    """Whether a value is computed from another one."""
    waiting, seen = [node], {node}
    while waiting:
        one = waiting.pop()
        if one is result:
            return True
        new = set(one.all_input_nodes) - seen
        seen |= new
        waiting += new
    return False


def replace(graph: fx.Graph, results: Mapping[fx.Node, fx.Node], nodes: Iterable[fx.Node]) -> None:
    """Let new nodes take the place of old ones, and take away what nothing takes any more.

    Args:
        graph: where all of them are.
        results: by old node, the new one.
        nodes: what may go.
    """
    for old, new in results.items():
        if "stack_trace" in old.meta:
            new.meta["stack_trace"] = old.meta["stack_trace"]
        old.replace_all_uses_with(new)
    unused = {*results, *nodes}
    for node in reversed(list(graph.nodes)):
        if node in unused and not node.users:
            graph.erase_node(node)


def value(node: Any) -> torch.Tensor | None:
    """The fake tensor that a node computes; None where that is no tensor."""
    found = node.meta.get("val") if isinstance(node, fx.Node) else None
    return found if isinstance(found, torch.Tensor) else None


def args(node: fx.Node) -> tuple[Any, ...]:
    """The arguments of a node, which may be of any type."""
    return node.args


def is_known(size: Any) -> bool:
    """Whether a size is a number before the graph runs."""
    return isinstance(size, int)


def pairs(node: fx.Node) -> Iterator[tuple[Any, Any]]:
    """Both orders of the operands of a sum or a product."""
    if len(node.args) == 2 and not node.kwargs:
        yield node.args[0], node.args[1]
        yield node.args[1], node.args[0]


def leaks(nodes: Collection[fx.Node], results: Collection[fx.Node]) -> bool:
    """Whether other nodes take a value inside of a chain, which has more values than its results."""
    own = set(nodes)
    return any(not own.issuperset(node.users) for node in own.difference(results))


def number(x: object, wanted: float) -> bool:
    """Whether an operand is this number."""
    return isinstance(x, (int, float)) and x == wanted


def equal(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two lists of sizes are surely the same, without a new assumption about sizes that change."""
    return len(a) == len(b) and all(statically_known_true(x == y) for x, y in zip(a, b, strict=True))


def same_shape(*tensors: torch.Tensor) -> bool:
    """Whether tensors surely have one shape, one dtype and one device."""
    first = tensors[0]
    return all(equal(x.shape, first.shape) and x.dtype == first.dtype and x.device == first.device for x in tensors[1:])


def same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether tensors surely have one shape and dtype, and their elements the same places."""
    strides = zip(a.shape, a.stride(), b.stride(), strict=True) if len(a.shape) == len(b.shape) else ()
    return same_shape(a, b) and all(
        statically_known_true(size == 1) or statically_known_true(x == y) for size, x, y in strides
    )


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements of a tensor surely lie side by side, in the order of its dimensions."""
    step: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if not (statically_known_true(size == 1) or statically_known_true(stride == step)):
            return False
        step = step * size
    return True


class Values:
    """The nodes of a graph in their order, and the nodes that share memory.

    Attributes:
        order: the place of each node.
        sharing: by memory, the nodes whose value lies there, in their order.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.order = {node: place for place, node in enumerate(graph.nodes)}
        self.sharing: dict[int, list[fx.Node]] = defaultdict(list)
        for node in graph.nodes:
            tensor = value(node)
            if tensor is not None:
                self.sharing[_memory(tensor)].append(node)

    def owner(self, node: fx.Node) -> fx.Node:
        """The node that makes the memory of a value: the first that lies there."""
        tensor = value(node)
        return node if tensor is None else self.sharing[_memory(tensor)][0]

    def readers(self, node: fx.Node) -> set[fx.Node]:
        """The nodes that take a value, or any that shares its memory."""
        tensor = value(node)
        sharing = [node] if tensor is None else self.sharing[_memory(tensor)]
        return {user for one in sharing for user in one.users} - set(sharing)

    def has_strides_by_number(self, node: fx.Node) -> bool:
        """Whether something takes a value by strides that it names, which are right for the strides of today alone."""
        tensor = value(node)
        sharing = () if tensor is None else self.sharing[_memory(tensor)]
        return any(is_call(one, aten.as_strided.default) for one in sharing)

    def place(
        self, inputs: Collection[fx.Node], results: Collection[fx.Node], own: Collection[fx.Node]
    ) -> tuple[fx.Node, list[fx.Node]]:
        """Where one op can take the place of a chain.

        Args:
            inputs: what the op takes.
            results: the nodes of the chain whose values the op gives.
            own: all nodes of the chain.

        Returns:
            The latest input, behind which the op stands; and the nodes up to it that need a result: they must move
            behind the op.

        Raises:
            Refused: there is no such place.
        """
        if not self.order.keys() >= set(inputs):
            raise Refused("its inputs are results of another chain")
        latest = max(inputs, key=lambda node: self.order[node])
        found = set(results)
        first, last = min(self.order[node] for node in found), self.order[latest]
        late = []
        for node, place in self.order.items():
            if first < place <= last and node not in own and any(source in found for source in node.all_input_nodes):
                found.add(node)
                late.append(node)
        if not set(inputs).isdisjoint({*late, *own}):
            raise Refused("its inputs need its results")
        return latest, late


def _memory(tensor: torch.Tensor) -> int:
    return int(StorageWeakRef(tensor.untyped_storage()).cdata)


class Editor:
    """It puts nodes behind a place of a graph, each with the value that it has on fake tensors."""

    def __init__(self, graph: fx.Graph, after: fx.Node) -> None:
        self.graph, self.last, self.made = graph, after, list[fx.Node]()
        self.mode: Any = next(
            mode for node in graph.nodes if (mode := getattr(value(node), "fake_mode", None)) is not None
        )

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """A node that calls a function.

        Raises:
            Refused: the function does not take such values.
        """
        fakes, named = fx.map_arg((args, kwargs), lambda node: node.meta["val"])
        try:
            with self.mode:
                result = target(*fakes, **named)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise Refused(f"a view or a table cannot be made: {type(error).__name__}: {error}") from error
        return self._put(target, args, kwargs, result)

    def constant(self, tensor: torch.Tensor) -> fx.Node:
        """A node of a tensor that the graph keeps."""
        module: Any = self.graph.owning_module
        name = next(name for i in itertools.count() if not hasattr(module, name := f"_sgljit_constant{i}"))
        module.register_buffer(name, tensor, persistent=False)
        with self.graph.inserting_after(self.last):
            return self._keep(self.graph.get_attr(name), self.mode.from_tensor(tensor, static_shapes=True))

    def size(self, node: fx.Node, dim: int) -> Any:
        """A size of a value: a number, or a node where it is not known before the graph runs."""
        size = node.meta["val"].shape[dim]
        return size if isinstance(size, int) else self.call(aten.sym_size.int, node, dim)

    def product(self, *factors: Any) -> Any:
        """A product of sizes."""
        result: Any = 1
        for factor in factors:
            if is_known(result) and is_known(factor):
                result *= factor
            else:
                result = factor if number(result, 1) else self.call(operator.mul, result, factor)
        return result

    def view(self, node: fx.Node, *shape: Any) -> fx.Node:
        """A view of a value in another shape.

        Raises:
            Refused: the strides allow no view.
        """
        result = self.call(aten.reshape.default, node, list(shape))
        if _memory(result.meta["val"]) != _memory(node.meta["val"]):
            raise Refused("the strides of its input allow no view")
        return result

    def write(
        self, op: Any, written: Mapping[str, tuple[fx.Node, tuple[Any, ...]]], rest: Mapping[str, Any]
    ) -> list[fx.Node]:
        """A call of an op that writes, and the nodes of the new values of what it writes.

        Args:
            op: the overload.
            written: by argument, the base and the view of it, as ``inductor.writing`` has them.
            rest: the arguments that are read.
        """
        bases = [base for base, _ in written.values()]
        target, args, kwargs = writing(op, bases, {name: view for name, (_, view) in written.items()}, rest)
        with self.mode:
            results = [
                torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
                for x in (base.meta["val"] for base in bases)
            ]
        node = self._put(target, args, kwargs, (None, *results))
        return [self._put(operator.getitem, (node, 1 + i), {}, result) for i, result in enumerate(results)]

    def _put(self, target: Any, args: Any, kwargs: Any, result: Any) -> fx.Node:
        with self.graph.inserting_after(self.last):
            return self._keep(self.graph.call_function(target, args, kwargs), result)

    def _keep(self, node: fx.Node, result: Any) -> fx.Node:
        node.meta["val"] = result
        self.last = node
        self.made.append(node)
        return node

    def move_here(self, nodes: Iterable[fx.Node]) -> None:
        """Move nodes behind all that was put in, in their order."""
        last = self.last
        for node in nodes:
            last.append(node)
            last = node

    def undo(self) -> None:
        """Take away what was put in."""
        for node in reversed(self.made):
            self.graph.erase_node(node)
            if node.op == "get_attr":
                delattr(self.graph.owning_module, str(node.target))
        self.made.clear()
