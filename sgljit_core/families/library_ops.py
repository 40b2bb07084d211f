"""How does an op look to torch.compile?

Each op is also a ``torch.library`` op, ``torch.ops.sgljit_<family>.<op>``, so that a graph can hold it: torch.compile
traces a call of the op as a call of that one, and so does whatever traces by a dispatch mode or by tensors without
memory (make_fx, non-strict torch.export, FakeTensorMode, torch.func). Eager calls go straight to the Python function:
the dispatcher would cost several times the call itself. The library op is registered with ``Library.define`` and
``impl``; ``torch.library.custom_op`` is ten times slower per call.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

from sgljit_core.errors import InvalidFamilyError, TensorMatchError

from .forwarding import forward, guarded

__all__ = ["dispatching", "register"]

# torch.compile hands on the arguments of an op that writes to them by name, through functions of its own that have
# parameters of these names. In the schema such a parameter gets a trailing underscore.
_TAKEN = frozenset({"ctx", "mode"})


@functools.cache
def _library(namespace: str) -> torch.library.Library:
    return torch.library.Library(namespace, "FRAGMENT")  # kept for the process: dropping it removes its ops


def register(
    family: str, name: str, function: Callable[..., Any], mutates: tuple[str, ...], fake: Callable[..., Any] | None
) -> Any:
    """Define ``torch.ops.sgljit_<family>.<name>`` with the schema of ``function``'s annotations.

    Parameters have the names of the function's, but for ``mode_`` and ``ctx_``, where torch.compile needs the bare
    names for itself; the function keeps them.

    Args:
        mutates: the tensor parameters that the op writes to.
        fake: computes the outputs' shapes on fake tensors; None for an op that returns nothing.

    Raises:
        InvalidFamilyError: the annotations do not make a schema, or the op seems to do nothing.
    """
    namespace = f"sgljit_{family}"
    try:
        schema = torch.library.infer_schema(_prototype(function), mutates_args=[_in_schema(name) for name in mutates])
    except ValueError as error:
        raise InvalidFamilyError(
            f"op {family}.{name}: its signature is no torch.library schema: {error}. Annotate every parameter and "
            f"the return value, and name every tensor that the op writes to in Op(mutates=...)"
        ) from error
    returns_nothing = schema.endswith("-> ()")
    if returns_nothing and not mutates and "Tensor" in schema:
        raise InvalidFamilyError(
            f"op {family}.{name} returns nothing and Op(mutates=...) names no parameter that it writes to: a compiled "
            f'graph would leave it out. Write Op({name!r}, ..., mutates=("out",)), every tensor that it changes'
        )
    library = _library(namespace)
    library.define(name + schema)
    library.impl(name, _by_schema(function), "CompositeExplicitAutograd")
    if fake is not None or returns_nothing:
        torch.library.register_fake(f"{namespace}::{name}", fake or _nothing, lib=library)
    return getattr(getattr(torch.ops, namespace), name).default


# What is not eager shows in one of two ways. A dispatch mode sees the calls of library ops alone, and torch tells in a
# global of the process that a thread has entered one; then the library op is right for all threads. (Each mode restores
# what it found, so where two threads are in modes at a time, the global may be off too early, and a call is run and not
# traced. To ask for the thread's own modes costs 6 % of a call more.) Tensors that stand for others make the function
# fail, as they have no memory; what costs time, to look at them, comes after that.
_GUARD = """\
    if sgljit_modes._is_in_torch_dispatch_mode:
        return sgljit_traced({arguments})
    try:
        return {call}
    except Exception:
        if not sgljit_stands_for_others({positional}):
            raise
    return sgljit_traced({arguments})
"""
# Of a torch without that global, tensors without memory are all that is noticed.
_modes: Any = torch.utils._python_dispatch  # noqa: SLF001
if not hasattr(_modes, "_is_in_torch_dispatch_mode"):
    _modes = types.SimpleNamespace(_is_in_torch_dispatch_mode=False)


def dispatching(function: Callable[..., Any], library_op: Any) -> Callable[..., Any]:
    """``function``, of which whatever traces it sees a call of ``library_op``.

    Eager calls pay for reading one global. Dynamo looks for the attribute on every function that it traces, which is
    how functions that are compiled already name their originals.
    """
    scope = {"sgljit_library_op": library_op}  # no parameter is called so
    traced = forward(function, "    return sgljit_library_op({arguments})\n", scope, _in_schema)
    function._torchdynamo_inline = traced  # type: ignore[attr-defined]  # noqa: SLF001
    if not any("Tensor" in str(argument.type) for argument in library_op._schema.arguments):  # noqa: SLF001
        return function  # it asks about this machine
    names = tuple(inspect.signature(function).parameters)

    def stands_for_others(*values: Any) -> bool:
        tensors = {name: value for name, value in zip(names, values, strict=True) if isinstance(value, torch.Tensor)}
        for name, tensor in tensors.items():
            if tensor.layout is not torch.strided:
                raise TypeError(
                    f"{function.__name__}(): {name} is a tensor of layout {tensor.layout}, and a kernel reads strided "
                    f"ones: pass {name}.to_dense()"
                ) from None
        if all(map(_has_memory, tensors.values())):
            return False
        _check_meta(function.__name__, tensors)
        return True

    tells = {"sgljit_modes": _modes, "sgljit_traced": traced, "sgljit_stands_for_others": stands_for_others}
    return guarded(function, _GUARD, tells)


def _check_meta(function: str, tensors: dict[str, torch.Tensor]) -> None:
    """Where one tensor is on meta, none has a device: nothing would run, and what should be written would stay.

    PyTorch's own ops have the same rule, and the same exception: a single number of the CPU goes with any device.
    """
    meta = next((name for name, tensor in tensors.items() if tensor.device.type == "meta"), None)
    if meta is None:
        return
    for name, tensor in tensors.items():
        is_number = tensor.device.type == "cpu" and tensor.dim() == 0
        if tensor.device.type != "meta" and not is_number:
            raise TensorMatchError(
                f"{function}(): {meta} is a meta tensor and {name} is on {tensor.device}, so nothing can be computed: "
                f"put all tensors on one device, or all on meta"
            ) from None


def _has_memory(tensor: torch.Tensor) -> bool:
    try:
        return tensor.numel() == 0 or tensor.data_ptr() >= 1 << 16  # as sgl_kernel/export.h has it
    except RuntimeError:  # fake tensors and those of torch.func
        return False


def _in_schema(name: str) -> str:
    """A parameter's name in the schema."""
    return f"{name}_" if name in _TAKEN else name


def _prototype(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a schema is inferred from: the declaration of ``function``, with the schema's names."""
    declared: Any = inspect.unwrap(function)
    signature = inspect.signature(declared)
    prototype: Any = types.FunctionType(declared.__code__, declared.__globals__)
    renamed = [parameter.replace(name=_in_schema(parameter.name)) for parameter in signature.parameters.values()]
    prototype.__signature__ = signature.replace(parameters=renamed)
    return prototype  # type: ignore[no-any-return]


def _by_schema(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as the dispatcher calls it: keyword-only arguments come by the schema's names."""
    own_names = {_in_schema(name): name for name in inspect.signature(function).parameters if name in _TAKEN}
    if not own_names:
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{own_names.get(name, name): value for name, value in kwargs.items()})

    return call


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """The fake of an op that writes to its arguments and returns nothing."""
