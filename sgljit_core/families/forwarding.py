"""How does a Python function pass its arguments on at the least cost?

A function that takes ``*args, **kwargs`` costs a third of a small kernel's whole call. So a forwarding function is
generated, with the signature of the function that it stands for.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

from sgljit_core.errors import InvalidFamilyError

__all__ = ["exported", "forward", "guarded"]

_TARGET = "sgljit_target"  # no parameter is called so


def exported(load: Callable[[], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a declaration without a body: a call of it *is* a call of the C++ function of the same name.

    Python adds the defaults of the arguments, nothing else; keyword-only parameters are passed by position too.

    >>> @exported(host_module)
    ... def rmsnorm(input: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> None:
    ...     \"\"\"What users read.\"\"\"

    Args:
        load: returns the module that exports the function; called at the first call of the op.
    """

    def decorate(declared: Callable[..., Any]) -> Callable[..., Any]:
        scope: dict[str, Any] = {}

        def first(*args: Any) -> Any:
            module = load()
            try:
                call = getattr(module, declared.__name__)
            except AttributeError as error:
                raise InvalidFamilyError(_not_exported(declared, module)) from error
            try:
                result = call(*args)
            except TypeError as error:
                count = re.search(rf"{declared.__name__}\(\): expected (\d+) arguments?, got {len(args)}$", str(error))
                if count is None:
                    raise
                raise InvalidFamilyError(
                    f"{declared.__module__}.{declared.__name__} declares {len(args)} parameters, and the C++ function "
                    f"takes {count[1]}: declare the same, in the same order"
                ) from error
            scope[_TARGET] = call  # in its own place: the next call goes there directly
            return result

        scope[_TARGET] = first
        return forward(declared, f"    return {_TARGET}({{positional}})\n", scope)

    return decorate


def _not_exported(declared: Callable[..., Any], module: Any) -> str:
    from sgljit_core.load.library import exports  # with what loads libraries, which a declaration does not need

    name, names = declared.__name__, exports(module)
    near = difflib.get_close_matches(name, names, n=1)
    return (
        f"{declared.__module__}.{name} stands for a function that its module does not export"
        f"{f'; did you mean {near[0]!r}?' if near else ''}; the module exports: {', '.join(names) or 'nothing'}. "
        f"With header_only=False, end the file of {name} with SGL_EXPORT({name}, ({name})); else name it in "
        f"cpp_wrappers: ({name!r}, the C++ symbol)"
    )


def guarded(function: Callable[..., Any], body: str, scope: dict[str, Any]) -> Callable[..., Any]:
    """A function like ``function``, and in its place, whose ``body`` decides when to call it.

    Args:
        body: as of ``forward``; ``{call}`` stands for the call. Of an exported function it is that of C++.
        scope: the other globals of ``body``.
    """
    own = function.__globals__
    if _TARGET in own:
        own.update(scope)
        return forward(function, body.replace("{call}", f"{_TARGET}({{positional}})"), own)
    return forward(function, body.replace("{call}", f"{_TARGET}({{arguments}})"), {_TARGET: function, **scope})


def forward(
    declared: Callable[..., Any], body: str, scope: dict[str, Any], keyword: Callable[[str], str] = str
) -> Callable[..., Any]:
    """A function with the signature and the documentation of ``declared``.

    Args:
        body: its text; ``{arguments}`` stands for the arguments as ``declared`` takes them, ``{positional}`` for the
            same, all by position.
        scope: its globals, which it may see replaced.
        keyword: the name by which ``{arguments}`` passes a keyword-only parameter on; its own by default.
    """
    parameters = inspect.signature(declared).parameters.values()
    takes: list[str] = []
    passes: list[str] = []
    for parameter in parameters:
        is_keyword = parameter.kind is parameter.KEYWORD_ONLY
        if is_keyword and "*" not in takes:
            takes.append("*")
        if parameter.default is parameter.empty:
            takes.append(parameter.name)
        else:
            scope[f"default_{parameter.name}"] = parameter.default
            takes.append(f"{parameter.name}=default_{parameter.name}")
        passes.append(f"{keyword(parameter.name)}={parameter.name}" if is_keyword else parameter.name)
    text = body.format(arguments=", ".join(passes), positional=", ".join(p.name for p in parameters))
    exec(f"def function({', '.join(takes)}):\n{text}", scope)  # noqa: S102 - the text is built from identifiers alone
    function: Callable[..., Any] = functools.wraps(declared)(scope["function"])
    return function
