"""How does an op's Python function reach the kernel at the least cost?

A function that takes ``*args, **kwargs`` costs a third of a small kernel's whole call, and so does a look at the
arguments in a loop. So the function that users call is generated, with the signature of the declaration and one
straight line of checks. Its code has the file and the line of the declaration: tracebacks and profiles show these.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import linecache
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sgljit_core.errors import InvalidFamilyError

__all__ = ["Generated", "Route", "as_arguments", "exported", "generate"]

Parameters = Sequence[inspect.Parameter]


@dataclass(frozen=True)
class Route:
    """A ``torch.library`` op that the generated function may call.

    Attributes:
        overload: what is called.
        parameters: those of the schema; a parameter may have another name there.
        names: the names in the declaration of the schema's parameters, in their order.
    """

    overload: Callable[..., Any]
    parameters: Parameters
    names: Sequence[str]


@dataclass(frozen=True)
class Generated:
    """What ``generate`` makes.

    Attributes:
        function: what users call.
        runs: for each route, a function with the parameters of its schema that calls the body.
        bind: replaces the body.
    """

    function: Callable[..., Any]
    runs: Sequence[Callable[..., Any]]
    bind: Callable[[Callable[..., Any]], None]


def generate(
    declared: Callable[..., Any],
    body: Callable[..., Any],
    by_position: bool,
    text: str,
    routes: Sequence[Route],
    scope: Mapping[str, Any],
) -> Generated:
    """A function with the signature and documentation of ``declared``, and one for each route.

    Args:
        body: what the functions call in the end.
        by_position: it takes all arguments by position; else as ``declared`` takes them.
        text: the function's statements; ``{body}`` stands for the call of the body, ``{arguments}`` for all arguments
            by position, ``{passed0}`` and on for those that ``sgl_route0`` and on take.
        routes: the library ops.
        scope: what else ``text`` names. Such names begin with ``sgl_``: no parameter's does.
    """
    parameters = list(inspect.signature(declared).parameters.values())
    names = [parameter.name for parameter in parameters]
    names_of_scope: dict[str, Any] = {"sgl_body": body, **scope}
    calls = {
        "body": f"sgl_body({as_arguments(parameters, names, by_position)})",
        "arguments": ", ".join(names),
    }
    runs = []
    for number, route in enumerate(routes):
        names_of_scope[f"sgl_route{number}"] = route.overload
        calls[f"passed{number}"] = as_arguments(route.parameters, route.names)
        own_names = dict(zip(route.names, (parameter.name for parameter in route.parameters), strict=True))
        passed = as_arguments(parameters, [own_names.get(name, "None") for name in names], by_position)
        takes = _takes(route.parameters, names_of_scope)
        runs.append(f"def sgl_run{number}({takes}):\n return sgl_body({passed})\n")
    source = (
        f"def {declared.__name__}({_takes(parameters, names_of_scope)}):\n{text.format(**calls)}\n{''.join(runs)}"
        f"def sgl_bind(sgl_function):\n global sgl_body\n sgl_body = sgl_function\n"
    )
    _run(declared, source, names_of_scope)
    function = functools.wraps(declared)(names_of_scope[declared.__name__])
    runners = [names_of_scope[f"sgl_run{number}"] for number in range(len(runs))]
    return Generated(function, runners, names_of_scope["sgl_bind"])


def _run(declared: Callable[..., Any], source: str, scope: dict[str, Any]) -> None:
    """Define the functions of a text in ``scope``, as if each stood where ``declared`` does.

    What they name are globals of their own: a closure would copy its cells at each call.
    """
    code = declared.__code__
    line = _line_of_def(code.co_filename, code.co_firstlineno)
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = line  # type: ignore[attr-defined]
            node.col_offset = node.end_col_offset = 0  # type: ignore[attr-defined]
    compiled = compile(tree, code.co_filename, "exec", dont_inherit=True)
    exec(compiled, scope)  # noqa: S102 - the text is built from identifiers alone


def _line_of_def(file: str, first: int) -> int:
    """The line of a function's ``def``: its code begins at its first decorator."""
    for line in range(first, first + 100):
        text = linecache.getline(file, line)
        if re.match(r"\s*(async\s+)?def\b", text):
            return line
        if not text:  # beyond the file, or there is no file
            break
    return first


def as_arguments(parameters: Parameters, values: Iterable[str], by_position: bool = False) -> str:
    """The text of a call's arguments: each parameter's value, keyword-only parameters by keyword."""
    return ", ".join(
        f"{parameter.name}={value}" if parameter.kind is parameter.KEYWORD_ONLY and not by_position else value
        for parameter, value in zip(parameters, values, strict=True)
    )


def _takes(parameters: Parameters, scope: dict[str, Any]) -> str:
    """The text of a signature; the defaults go into ``scope``."""
    takes: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in takes:
            takes.append("*")
        if parameter.default is parameter.empty:
            takes.append(parameter.name)
        else:
            scope[f"sgl_default_{parameter.name}"] = parameter.default
            takes.append(f"{parameter.name}=sgl_default_{parameter.name}")
    return ", ".join(takes)


def exported(
    declared: Callable[..., Any], load: Callable[[], Any], bind: Callable[[Callable[..., Any]], None]
) -> Callable[..., Any]:
    """The body of an op whose body is C++, for the first call: it puts the C++ function in its own place.

    Args:
        load: returns the module that exports the function of the same name.
        bind: puts a function in the place of this one.
    """

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
        bind(call)
        return result

    return first


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
