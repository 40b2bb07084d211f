"""How is inductor asked to compile a graph, with a pass of ours over it?

All that the package takes from modules of torch with an underscore is here: ``torch._inductor.compile``, its options
and its ``CustomGraphPass``, which torch offers for extensions; and the higher-order op that stands for an op that
writes, in a graph where nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._inductor import compile as inductor_compile, config, custom_graph_pass, list_mode_options
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import unset_fake_temporarily

__all__ = [
    "Rewrite",
    "attention_op",
    "compile_graph",
    "grouped_product",
    "is_writing",
    "joins_products",
    "keeps_roundings",
    "mode_options",
    "reset",
    "unset_fake_temporarily",
    "wants_gradients",
    "writing",
]

Rewrite = Callable[[fx.Graph], None]

_OPTION = "post_grad_custom_pre_pass"
_SCHEDULER_OPTION = "_pre_fusion_custom_pass"
# A pass over the schedule; torch 2.11 takes one of the same kind as over graphs.
_SchedulerPass: Any = getattr(custom_graph_pass, "CustomSchedulerPass", CustomGraphPass)
_PREFIX = "sgljit_"  # of names in the code of a graph
_FILES = tuple(sorted(map(str, Path(__file__).parent.glob("*.py"))))


class _Pass(CustomGraphPass):
    """A pass over graphs for inference, behind the user's own. Its parts are in the keys of torch's caches."""

    def __init__(self, rewrite: Rewrite, identity: str, others: Sequence[Any]) -> None:
        self.rewrite, self.identity, self.others = rewrite, identity, others

    def __call__(self, graph: fx.Graph) -> None:
        is_inference = not _is_of_training(graph)
        knowing: Any = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", ())  # torch 2.11 has it not
        for other in self.others:
            other(graph, is_inference=is_inference) if isinstance(other, knowing) else other(graph)
        if is_inference:
            with unset_fake_temporarily():  # ops are tried on real tensors
                self.rewrite(graph)

    def uuid(self) -> Any:
        others = [other.uuid() if isinstance(other, CustomGraphPass) else None for other in self.others]
        return None if None in others else (get_hash_for_files(_FILES, self.identity), *others)


class _DirectCalls(_SchedulerPass):  # type: ignore[misc]
    """Has the Python code of a graph call the functions of ops.

    PyTorch's dispatcher costs several times the call itself. The functions check what it would.
    """

    def __init__(self, functions: Mapping[Any, str], lines: Callable[[], Sequence[str]]) -> None:
        self.functions, self.lines = functions, lines

    def __call__(self, nodes: list[Any]) -> list[Any]:
        graph: Any = V.graph  # untyped
        if graph.cpp_wrapper or graph.fx_wrapper:
            return nodes
        lines = self.lines()
        for kernel in (node.node for node in nodes):
            name = self.functions.get(getattr(kernel, "op_overload", None))
            if name is not None:
                module, _, function = name.rpartition(".")
                for line in (f"from {module} import {function} as {_PREFIX}{function}", *lines):
                    graph.wrapper_code.add_import_once(line)
                kernel.set_python_kernel_name(f"{_PREFIX}{function}")
        return nodes

    def uuid(self) -> Any:
        return get_hash_for_files(_FILES, " ".join(f"{op} {name}" for op, name in self.functions.items()))


def _is_of_training(graph: fx.Graph) -> bool:
    """Whether a graph is the forward or backward part of a training step, by the names that torch gives to inputs."""
    return any(node.op == "placeholder" and node.name.startswith(("primals", "tangents")) for node in graph.nodes)


def wants_gradients(inputs: Sequence[Any]) -> bool:
    """Whether the graph that a backend gets will have a backward part."""
    return torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)


def compile_graph(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    options: Mapping[str, Any],
    rewrite: Rewrite | None,
    identity: str,
    functions: Mapping[Any, str],
    lines: Callable[[], Sequence[str]],
) -> Callable[..., Any]:
    """The code of inductor for a graph of torch.compile.

    Args:
        module, inputs: what torch.compile gives to a backend.
        options: options of inductor.
        rewrite: called with each graph for inference that inductor makes of it, in ATen ops without writes.
        identity: what ``rewrite`` depends on beside the files of this package.
        functions: by overload, the function to call in its place, with its module. It takes the same arguments.
        lines: of code that runs when a graph with such a function is loaded; asked for after ``rewrite``.
    """
    options = dict(options)
    if rewrite is not None:
        others = options.get(_OPTION, getattr(config, _OPTION))
        options[_OPTION] = _Pass(rewrite, identity, _several(others))
        # There can be one such pass. Beside the user's own, ops are called by the dispatcher.
        if options.get(_SCHEDULER_OPTION, getattr(config, _SCHEDULER_OPTION)) is None:
            options[_SCHEDULER_OPTION] = _DirectCalls(functions, lines)
    return inductor_compile(module, list(inputs), options=options)  # type: ignore[no-any-return]


def _several(passes: Any) -> Sequence[Any]:
    if passes is None:
        return ()
    return tuple(passes) if isinstance(passes, (list, tuple)) else (passes,)


def mode_options(mode: str | None) -> dict[str, Any]:
    """The options of inductor that a ``mode`` of torch.compile stands for."""
    return {} if mode in (None, "default") else list_mode_options(mode)


def keeps_roundings(options: Mapping[str, Any]) -> bool:
    """Whether inductor is asked to round wherever the model does, also inside of a kernel."""
    return bool(options.get("emulate_precision_casts", config.emulate_precision_casts))


def joins_products(options: Mapping[str, Any]) -> bool:
    """Whether inductor is asked to compute several matrix products as one, whose results are parts of one tensor."""
    name = "post_grad_fusion_options"
    return bool(options.get(name, getattr(config, name)))


def reset() -> None:
    """Forget the CUDA graphs of mode "reduce-overhead", as ``torch.compiler.reset`` does with backend "inductor"."""
    if torch.cuda.is_available():
        from torch._inductor.cudagraph_trees import reset_cudagraph_trees

        reset_cudagraph_trees()


def attention_op(name: str) -> Any:
    """A kernel of PyTorch's attention, as a graph calls it. Their names begin with an underscore."""
    return getattr(torch.ops.aten, f"_scaled_dot_product_{name}").default


def grouped_product() -> Any:
    """The product of rows with the matrices of their groups, as a graph calls ``torch.nn.functional.grouped_mm``."""
    name = "_grouped_mm"
    return getattr(torch.ops.aten, name).default


def is_writing(node: fx.Node) -> bool:
    """Whether a node calls an op that writes, on copies, as ``writing`` makes it."""
    return node.target is torch.ops.higher_order.auto_functionalized_v2


def writing(
    op: Any, bases: Sequence[fx.Node], views: Mapping[str, tuple[Any, ...]], rest: Mapping[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The target and the arguments of a node that calls an op which writes, on copies: its results are the new bases.

    Inductor leaves the copies out where nothing reads the old values afterwards.

    Args:
        op: the overload of a ``torch.library`` op that returns nothing.
        bases: the tensors that it writes to, each with memory of its own.
        views: by argument that is written, in the order of ``bases``: nothing where it is the base itself, else the
            size, the strides and the offset of a view of the base.
        rest: the arguments that are read.
    """
    arguments: dict[str, Any] = {**rest, "_all_bases": list(bases)}
    for index, (name, view) in enumerate(views.items()):
        arguments[f"_{name}_base_index"] = index
        if view:
            size, stride, offset = view
            arguments |= {f"_{name}_size": size, f"_{name}_stride": stride, f"_{name}_storage_offset": offset}
    return torch.ops.higher_order.auto_functionalized_v2, (op,), arguments
