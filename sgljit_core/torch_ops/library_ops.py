"""How does a declared function become an op of PyTorch's?

Each op is also a ``torch.library`` op, ``torch.ops.sgljit_<family>.<op>``, so that a graph can hold it. The function
calls the library op under torch.compile, and for tensors that are not plain: fake tensors, subclasses, those of
torch.func. A call on plain tensors goes straight to the body: the dispatcher would cost several times the call itself.

The questions that decide are public: is torch.compile tracing, is the type exactly ``torch.Tensor`` or ``Parameter``,
and, where the direct call has failed, does a tensor have memory. They do not show a mode that traces plain tensors,
such as make_fx with real tensors: there users call ``torch.ops``.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from . import tensors
from .forwarding import as_arguments, generate
from .gradients import refuse_gradients
from .schema import ORDER, Declaration, Form
from .tracing import Constant


class LibraryOps(NamedTuple):
    """The ``torch.library`` ops of one declaration: one; with ``inplace`` a second, which works in place."""

    overloads: Sequence[Any]
    forms: Sequence[Form]


def define(
    family: str, declaration: Declaration, exports: Callable[[], Any] | None, package: str
) -> tuple[Callable[..., Any], LibraryOps, torch.library.Library]:
    """The function that users call, the library ops of a declaration, each with one overload, and their Library.

    They exist as long as the Library, which the caller is to keep and to give to nobody else. ``package`` is the
    plugin's.
    """
    library = torch.library.Library(f"sgljit_{family}", "FRAGMENT")
    forms, overload_name = declaration.forms, _overload_name(declaration, package)
    overloads = []
    for form, schema in zip(forms, declaration.schemas, strict=True):
        library.define(f"{form.name}.{overload_name}{schema}")
        overloads.append(getattr(getattr(getattr(torch.ops, library.ns), form.name), overload_name))
    scope: dict[str, Any] = {}
    function, runs = generate(declaration, exports, _statements(declaration, scope), overloads, scope)
    for form, overload, run in zip(forms, overloads, runs, strict=True):
        library.impl(overload, run, "CompositeExplicitAutograd")
        if declaration.only_writes:  # register_fake would do, but reads source files for its messages
            library.impl(overload, lambda *_args, **_kwargs: None, "Meta")
        else:
            torch.library.register_fake(overload, _fake(declaration, form, run), lib=library)
        if declaration.takes_tensors:
            refuse_gradients(library, overload, run, f"{family}.{declaration.name}", form.names)
    return function, LibraryOps(overloads, forms), library


def _statements(declaration: Declaration, scope: dict[str, Any]) -> str:
    """The statements of the function that users call; what they name goes into ``scope``."""

    def ask(*args: Any, **kwargs: Any) -> Any:
        return scope["sgl_run0"](*args, **kwargs)

    if not declaration.takes_tensors:
        scope["sgl_is_compiling"] = torch.compiler.is_compiling
        if declaration.returns_nothing:
            scope[ORDER.name] = tensors.PLAIN
            traced = "sgl_route0({passed0})"
        else:  # it asks about this machine: graphs hold the answer
            scope["sgl_constant"] = Constant(ask)
            traced = "sgl_constant.call({passed0})"
        return f"  if sgl_is_compiling():\n   return {traced}\n  return {{body}}"
    text = "" if declaration.has_lists else _direct(declaration, scope)
    out = declaration.out
    if declaration.returns_out:  # an argument that is no tensor reaches the body, which refuses it
        scope["sgl_made"] = declaration.fake
        given = (name for name, may_be_none in declaration.tensors.items() if not may_be_none)
        are_tensors = " and ".join(f"sgl_isinstance({name}, sgl_Tensor)" for name in given)
        arguments = as_arguments(declaration.parameters, list(declaration.signature.parameters))
        made = f"  if {out} is None and {are_tensors}:\n   {out} = sgl_made({arguments})\n"
        return f"{made}{text}  sgl_route0({{passed0}})\n  return {out}"
    if out is not None:
        text += f"  if {out} is None:\n   return sgl_route1({{passed1}})\n"
    return text + "  return sgl_route0({passed0})"


def _direct(declaration: Declaration, scope: dict[str, Any]) -> str:
    """The statements that call the body with plain tensors. Other calls reach the statements after them."""
    plain, others, grads = [], [], []
    for name, may_be_none in declaration.tensors.items():
        none, no_none = (f"{name} is None or ", f"{name} is not None and ") * may_be_none or ("", "")
        plain.append(f"({none}sgl_type({name}) is sgl_Tensor or sgl_type({name}) is sgl_Parameter)")
        others.append(f"({none}sgl_isinstance({name}, sgl_Tensor))")
        grads.append(f"{no_none}{name}.requires_grad")
    scope.update(
        sgl_type=type,
        sgl_isinstance=isinstance,
        sgl_Tensor=torch.Tensor,
        sgl_Parameter=torch.nn.Parameter,
        sgl_is_tracing=torch.compiler.is_dynamo_compiling,  # these two cost less than is_compiling, which asks both
        sgl_is_exporting=torch.compiler.is_exporting,
        sgl_is_grad_enabled=torch.is_grad_enabled,
        sgl_stand_in=tensors.stand_in,
    )
    tensors_by_name = ", ".join(f"{name!r}: {name}" for name in declaration.tensors)
    no_gradient = f"not (sgl_is_grad_enabled() and ({' or '.join(grads)}))"
    give = f"{{body}}; return {declaration.out}" if declaration.returns_out else "return {body}"
    lines = (
        f"if {' and '.join(plain)} and not (sgl_is_tracing() or sgl_is_exporting()) and {no_gradient}:",
        " try:",
        f"  {give}",
        " except Exception as sgl_error:",
        f"  if not sgl_stand_in({declaration.name!r}, {{{{{tensors_by_name}}}}}):",
        "   sgl_name_parameter(sgl_error)",
        "   raise",
        # The body refuses an argument that is no tensor, as it refuses any wrong argument.
        f"if not sgl_is_tracing() and not ({' and '.join(others)}):",
        " try:",
        f"  {give}",
        " except TypeError as sgl_error:",
        "  sgl_name_parameter(sgl_error)",
        "  raise",
    )
    return "".join(f"  {line}\n" for line in lines)


def _fake(declaration: Declaration, form: Form, run: Callable[..., Any]) -> Callable[..., Any]:
    """The fake of a library op that returns something."""
    fake, names = declaration.fake, {own: name for name, own in form.own_names.items()}
    if fake is None:
        return run
    return lambda *args, **kwargs: fake(*args, **{names[own]: value for own, value in kwargs.items()})


def _overload_name(declaration: Declaration, package: str) -> str:
    """The name of an op's overloads, ``v_0123456789ab``: it depends on everything that a graph with the op relies on.

    torch.compile keeps compiled graphs on disk, and finds them by the names of their ops: a release that changes the
    schema, or what the fake says of the result, has another op. architecture.md has what was rejected ("Decisions").

    An op that only writes has no fake in graphs: its name is the same in all releases with the same schema. An op that
    returns something has another name in each ``__version__`` of the plugin's package, as its fake may call functions
    of other files. The text of the fake's own file counts, too.
    """
    parts = [form.name + schema for form, schema in zip(declaration.forms, declaration.schemas, strict=True)]
    if not declaration.only_writes:
        parts.append(getattr(sys.modules.get(package.partition(".")[0]), "__version__", ""))
        parts.append("" if declaration.fake is None else _text_of(declaration.fake))
    return "v_" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _text_of(fake: Callable[..., Any]) -> str:
    """Its name, and the text of its file if that is Python."""
    while isinstance(fake, functools.partial):
        fake = fake.func
    name = f"{getattr(fake, '__module__', '')}.{getattr(fake, '__qualname__', type(fake).__qualname__)}"
    file = getattr(getattr(fake, "__code__", None), "co_filename", None)
    if file is None or not Path(file).is_file():
        return name
    return f"{name} {Path(file).read_text(encoding='utf-8', errors='replace')}"
