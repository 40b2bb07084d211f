"""How does a declared function become an op of PyTorch's?

Each op is also a ``torch.library`` op, ``torch.ops.sgljit_<family>.<op>``, so that a graph can hold it: under
torch.compile, and for tensors that are not plain (fake tensors, subclasses, those of torch.func), the function calls
that one. A call on plain tensors goes straight to the body: the dispatcher would cost several times the call itself.
The library op is registered with ``Library.define`` and ``impl``; ``torch.library.custom_op`` is ten times slower per
call.

The questions that decide are public: is torch.compile tracing, is the type exactly ``torch.Tensor`` or ``Parameter``,
and, where the direct call has failed, does a tensor have memory. A mode that traces plain tensors (make_fx with real
tensors) cannot be seen that way; who traces so calls ``torch.ops``.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch

from sgljit_core.errors import InvalidFamilyError
from sgljit_core.machine.forks import ForkLock

from . import tensors
from .forwarding import Generated, Route, exported, generate
from .gradients import refuse_gradients
from .schema import ORDER, Declaration, Variant
from .tracing import constant

__all__ = ["LibraryOps", "define"]

P = ParamSpec("P")
R = TypeVar("R")

_ORDER_STATE = torch.empty(0)  # all ops share it, and none looks at it
_lock = ForkLock()


@dataclass(frozen=True)
class LibraryOps:
    """The ``torch.library`` ops of one declaration.

    Attributes:
        overloads: one; with ``inplace`` two, the one that writes ``out`` and the one that works in place.
        variants: what each overload is.
        library: keeps the ops; without it they are gone.
        place: file and line of the declaration.
    """

    overloads: Sequence[Any]
    variants: Sequence[Variant]
    library: torch.library.Library
    place: str


def define(
    family: str,
    where: str,
    function: Callable[P, R],
    exports: Callable[[], Any] | None,
    mutates: tuple[str, ...],
    inplace: str | None,
    fake: Callable[..., Any] | None,
) -> tuple[Callable[P, R], LibraryOps]:
    """The op that a declaration is, and its library ops; see ``KernelFamily.op`` for the arguments.

    Args:
        where: names the op and its file in errors.

    Raises:
        InvalidFamilyError: the annotations make no schema, or the op cannot work in a graph.
    """
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError as error:
        raise InvalidFamilyError(f"{where}: an annotation cannot be evaluated: {error}") from error
    declaration = Declaration(where, function.__name__, signature, mutates, inplace, fake)
    declaration.check()
    variants = declaration.variants()
    schemas = [declaration.schema(variant) for variant in variants]

    namespace = f"sgljit_{family}"
    library = torch.library.Library(namespace, "FRAGMENT")
    routes = []
    for variant, schema in zip(variants, schemas, strict=True):
        library.define(variant.name + schema)
        routes.append(Route(_overload(namespace, variant.name), variant.parameters, variant.names))
    generated = _generated(declaration, function, exports is not None, library, namespace, routes)
    if exports is not None:
        generated.bind(exported(function, exports, generated.bind))
    for variant, route, run in zip(variants, routes, generated.runs, strict=True):
        library.impl(variant.name, run, "CompositeExplicitAutograd")
        if declaration.returns_nothing:  # register_fake would do, but reads source files for its messages
            library.impl(variant.name, _nothing, "Meta")
        else:
            fake = _fake(declaration, variant, run)
            torch.library.register_fake(f"{namespace}::{variant.name}", fake, lib=library)
        if declaration.takes_tensors:
            op = f"{family}.{declaration.name}"
            refuse_gradients(library, variant.name, route.overload, op, variant.names)
    place = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
    return generated.function, LibraryOps([route.overload for route in routes], variants, library, place)


def _overload(namespace: str, name: str) -> Any:
    return getattr(getattr(torch.ops, namespace), name).default


def _generated(
    declaration: Declaration,
    function: Callable[..., Any],
    by_position: bool,
    library: torch.library.Library,
    namespace: str,
    routes: Sequence[Route],
) -> Generated:
    """The function that users call, and what the library ops run."""

    def ask(*args: Any, **kwargs: Any) -> Any:
        return generated.runs[0](*args, **kwargs)

    scope: dict[str, Any] = {}
    if not declaration.takes_tensors:
        scope["sgl_is_compiling"] = torch.compiler.is_compiling
        if declaration.returns_nothing:
            scope[ORDER.name] = _ORDER_STATE
            traced = "sgl_route0({passed0})"
        else:  # it asks about this machine: graphs hold the answer
            scope["sgl_constant"] = constant(ask)
            traced = "sgl_constant.call({passed0})"
        text = f"  if sgl_is_compiling():\n   return {traced}\n  return {{body}}"
    else:
        text = "" if declaration.has_lists else _direct(declaration, scope, library, namespace)
        if declaration.inplace is not None:
            text += f"  if {declaration.out()} is None:\n   return sgl_route1({{passed1}})\n"
        text += "  return sgl_route0({passed0})"
    generated = generate(function, function, by_position, text, routes, scope)
    return generated


def _direct(declaration: Declaration, scope: dict[str, Any], library: torch.library.Library, namespace: str) -> str:
    """The statements that call the body with plain tensors. Other calls reach the statements after them."""
    plain, others, grads, offsets = [], [], [], []
    for name in declaration.tensors:
        none, no_none = (f"{name} is None or ", f"{name} is not None and ") * declaration.may_be_none(name) or ("", "")
        plain.append(f"({none}sgl_type({name}) is sgl_Tensor or sgl_type({name}) is sgl_Parameter)")
        others.append(f"({none}sgl_isinstance({name}, sgl_Tensor))")
        grads.append(f"{no_none}{name}.requires_grad")
        offsets.append(f"{no_none}{name}.storage_offset()")
    scope.update(
        sgl_type=type,
        sgl_isinstance=isinstance,
        sgl_Tensor=torch.Tensor,
        sgl_Parameter=torch.nn.Parameter,
        sgl_is_tracing=torch.compiler.is_dynamo_compiling,  # these two cost less than is_compiling, which asks both
        sgl_is_exporting=torch.compiler.is_exporting,
        sgl_is_grad_enabled=torch.is_grad_enabled,
        sgl_stand_in=_stand_in(declaration),
    )
    no_gradient = f"not (sgl_is_grad_enabled() and ({' or '.join(grads)}))"
    lines = [
        f"if {' and '.join(plain)} and not (sgl_is_tracing() or sgl_is_exporting()) and {no_gradient}:",
        " try:",
        "  return {body}",
        " except Exception:",
        "  if not sgl_stand_in({arguments}):",
        "   raise",
        # The body refuses an argument that is no tensor, as it refuses any wrong argument.
        f"if not sgl_is_tracing() and not ({' and '.join(others)}):",
        " return {body}",
    ]
    if declaration.mutates and declaration.returns_nothing:
        scope["sgl_on_copies"] = _OnCopies(declaration, library, namespace)
        lines[4:4] = ["  if sgl_on_copies({arguments}):", "   return None"]
    if tensors.HEAP_IS_LOW:
        scope["sgl_require_memory"] = tensors.require_memory
        lines[2:2] = [f"  if {' or '.join(offsets)}:", "   sgl_require_memory({arguments})"]
    return "".join(f"  {line}\n" for line in lines)


def _stand_in(declaration: Declaration) -> Callable[..., bool]:
    names = list(declaration.signature.parameters)

    def stand_in(*values: Any) -> bool:
        given = zip(names, values, strict=True)
        return tensors.stand_in(declaration.name, {n: v for n, v in given if isinstance(v, torch.Tensor)})

    return stand_in


def _fake(declaration: Declaration, variant: Variant, run: Callable[..., Any]) -> Callable[..., Any]:
    """The fake of a library op that returns something."""
    if declaration.fake is None:
        return run
    fake = declaration.fake
    own_names = {p.name: name for p, name in zip(variant.parameters, variant.names, strict=True)}

    def call(*args: Any, **kwargs: Any) -> Any:
        return fake(*args, **{own_names[name]: value for name, value in kwargs.items()})

    return call


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """The fake of an op that writes to its arguments and returns nothing."""


class _OnCopies:
    """Does a call on tensors of ``torch.func.functionalize``, for whose sake an op may not write.

    A library op of its own writes to copies and returns them, and what it returns is copied back: a ``copy_`` is
    something that functionalisation knows how to replace.
    """

    def __init__(self, declaration: Declaration, library: torch.library.Library, namespace: str) -> None:
        self._declaration = declaration
        self._library = weakref.ref(library)  # it lives as long as the declaration, see KernelFamily
        self._namespace = namespace

    def __call__(self, *values: Any) -> bool:
        """Whether such a tensor is among the arguments; then the call is done."""
        if not any(map(tensors.is_functional, values)):
            return False
        arguments = dict(zip(self._declaration.signature.parameters, values, strict=True))
        out = self._declaration.out()
        variant = self._declaration.variants()[1 if out is not None and arguments[out] is None else 0]
        own_names = [parameter.name for parameter in variant.parameters]
        passed = {own: arguments[name] for own, name in zip(own_names, variant.names, strict=True)}
        results = self._overload(variant)(**passed)
        for name, result in zip(variant.mutates, results, strict=True):
            arguments[name].copy_(result)
        return True

    def _overload(self, variant: Variant) -> Any:
        name = f"functional_{variant.name}"
        with _lock.here():
            if not hasattr(getattr(torch.ops, self._namespace), name):
                self._define(name, variant)
        return _overload(self._namespace, name)

    def _define(self, name: str, variant: Variant) -> None:
        overload = _overload(self._namespace, variant.name)
        signature = inspect.Signature(variant.parameters)
        own_names = dict(zip(variant.names, (parameter.name for parameter in variant.parameters), strict=True))

        def run(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
            arguments = signature.bind(*args, **kwargs)
            arguments.apply_defaults()
            copies = {own_names[name]: arguments.arguments[own_names[name]].clone() for name in variant.mutates}
            overload(**{**arguments.arguments, **copies})
            return list(copies.values())

        library = self._library()
        if library is None:
            raise RuntimeError(f"{self._declaration.where}: the op was declared anew; use what its module has now")
        library.define(name + self._declaration.schema(variant, returns=list[torch.Tensor]))
        library.impl(name, run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{self._namespace}::{name}", run, lib=library)
