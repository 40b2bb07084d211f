"""How does an op look to torch.compile?

Each op is also a ``torch.library`` op, ``torch.ops.sgljit_<family>.<op>``, so that a compiled graph can hold it.
Eager calls go straight to the Python function: the dispatcher would cost several times the call itself. It is
registered with ``Library.define`` and ``impl``; ``torch.library.custom_op`` is ten times slower per call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from .errors import InvalidFamilyError

__all__ = ["dispatching", "register"]


@functools.cache
def _library(namespace: str) -> torch.library.Library:
    return torch.library.Library(namespace, "FRAGMENT")  # kept for the process: dropping it removes its ops


def register(
    family: str, name: str, function: Callable[..., Any], mutates: tuple[str, ...], fake: Callable[..., Any] | None
) -> Any:
    """Define ``torch.ops.sgljit_<family>.<name>`` with the schema of ``function``'s annotations.

    Args:
        mutates: the tensor parameters that the op writes to.
        fake: computes the outputs' shapes on fake tensors; None for an op that returns nothing.

    Raises:
        InvalidFamilyError: the annotations do not make a schema.
    """
    namespace = f"sgljit_{family}"
    try:
        schema = torch.library.infer_schema(function, mutates_args=mutates)
    except ValueError as error:
        raise InvalidFamilyError(
            f"op {family}.{name}: its signature is no torch.library schema: {error}. Annotate every parameter and "
            f"the return value, and name every tensor that the op writes to in Op(mutates=...)"
        ) from error
    library = _library(namespace)
    library.define(name + schema)
    library.impl(name, function, "CompositeExplicitAutograd")
    returns_nothing = schema.endswith("-> ()")
    if fake is not None or returns_nothing:
        torch.library.register_fake(f"{namespace}::{name}", fake or _nothing, lib=library)
    return getattr(getattr(torch.ops, namespace), name).default


def dispatching(function: Callable[..., Any], library_op: Any) -> Callable[..., Any]:
    """``function``, which gives way to ``library_op`` while torch.compile traces.

    The wrapper is generated with the function's own signature: passing ``*args, **kwargs`` on costs a third of a
    small kernel's whole call.
    """
    signature = inspect.signature(function)
    names = {p: f"default_{i}" for i, p in enumerate(signature.parameters)}
    declared, passed = [], []
    star = False
    for parameter in signature.parameters.values():
        default = "" if parameter.default is parameter.empty else f"={names[parameter.name]}"
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            declared.append("*")
            star = True
        declared.append(parameter.name + default)
        keyword = parameter.kind is parameter.KEYWORD_ONLY
        passed.append(f"{parameter.name}={parameter.name}" if keyword else parameter.name)
    arguments = ", ".join(passed)
    source = (
        f"def op({', '.join(declared)}):\n"
        f"    if is_compiling():\n"
        f"        return library_op({arguments})\n"
        f"    return function({arguments})\n"
    )
    scope: dict[str, Any] = {names[p.name]: p.default for p in signature.parameters.values()}
    scope |= {"is_compiling": torch.compiler.is_compiling, "library_op": library_op, "function": function}
    exec(source, scope)  # noqa: S102 - the text is built from identifiers alone
    wrapped: Callable[..., Any] = functools.wraps(function)(scope["op"])
    return wrapped


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """The fake of an op that writes to its arguments and returns nothing."""
