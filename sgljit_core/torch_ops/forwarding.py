"""How does an op's Python function reach the kernel at the least cost?

A function that takes ``*args, **kwargs``, or looks at its arguments in a loop, costs a third of a small kernel's call.
So the function that users call is generated, with the signature of the declaration and one straight line of checks. Its
code has the file and the line of the declaration: tracebacks and profiles show these.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sgljit_core import log
from sgljit_core.errors import InvalidFamilyError

from .schema import Declaration

Function = Callable[..., Any]
Parameters = Sequence[inspect.Parameter]


def generate(
    declaration: Declaration,
    exports: Callable[[], Any] | None,
    text: str,
    overloads: Sequence[Function],
    scope: dict[str, Any],
) -> tuple[Function, list[Function]]:
    """The function that users call, and for each library op one with the parameters of its schema; both run the body.

    Args:
        exports: returns the module whose function of the same name is the body; without it the declared function is.
        text: the function's statements; ``{body}`` stands for the call of the body, ``{arguments}`` for all arguments
            by position, ``{passed0}`` and on for those that ``sgl_route0`` and on, the ``overloads``, take.
        scope: what else ``text`` names, and the functions' globals. Such names begin with ``sgl_``: no parameter does.
    """
    declared, parameters, by_position = declaration.function, declaration.parameters, exports is not None
    names = [parameter.name for parameter in parameters]
    calls = {"body": f"sgl_body({as_arguments(parameters, names, by_position)})", "arguments": ", ".join(names)}
    runs = []
    for number, (form, overload) in enumerate(zip(declaration.forms, overloads, strict=True)):
        scope[f"sgl_route{number}"] = overload
        calls[f"passed{number}"] = as_arguments(form.parameters, form.names)
        passed = as_arguments(parameters, [form.own_names.get(name, "None") for name in names], by_position)
        runs.append(f"def sgl_run{number}({_takes(form.parameters, scope)}):\n return sgl_body({passed})\n")
    _run(
        declared,
        f"def {declared.__name__}({_takes(parameters, scope)}):\n{text.format(**calls)}\n{''.join(runs)}",
        scope,
    )
    body = declared if exports is None else _exported(declaration, exports, scope)
    scope["sgl_body"] = body if log.observer is None else log.observer.around(declaration, body)
    scope["sgl_name_parameter"] = functools.partial(_name_parameter, declared.__name__, names if by_position else ())
    function = functools.wraps(declared)(scope[declared.__name__])
    return function, [scope[f"sgl_run{number}"] for number in range(len(runs))]


def _run(declared: Function, source: str, scope: dict[str, Any]) -> None:
    """Define the functions of a text in ``scope``, as if each stood where ``declared`` does.

    The names in them are globals of their own: a closure would copy its cells at each call.
    """
    code = declared.__code__
    line = code.co_firstlineno
    place = {"lineno": line, "end_lineno": line, "col_offset": 0, "end_col_offset": 0}
    tree = ast.parse(source)
    nodes: list[Any] = [tree]
    for node in nodes:  # which grows; ast.walk makes five calls for each node
        fields = getattr(node, "__dict__", {})  # a list of an argument's defaults has None, too
        for value in fields.values():
            nodes += value if isinstance(value, list) else [value] if isinstance(value, ast.AST) else []
        if "lineno" in fields:
            fields.update(place)
    compiled = compile(tree, code.co_filename, "exec", dont_inherit=True)
    exec(compiled, scope)  # noqa: S102 - the text is built from identifiers alone


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


def _name_parameter(function: str, names: Sequence[str], error: Exception) -> None:
    """Put a parameter's name into an error of the exported function, which knows positions alone."""
    found = re.match(rf"({function}\(\): argument (\d+))(: .*)", str(error), re.DOTALL)
    if found is not None and names:
        error.args = (f"{found[1]} ({names[int(found[2]) - 1]}){found[3]}",)


def _exported(declaration: Declaration, load: Callable[[], Any], scope: dict[str, Any]) -> Function:
    """The body of an op whose body is C++, for the first call: it puts the C++ function in its own place."""
    declared = declaration.function

    def first(*args: Any) -> Any:
        module = load()
        try:
            call = getattr(module, declared.__name__)
        except AttributeError as error:
            name = declared.__name__
            if not hasattr(module, "implements_function"):
                raise InvalidFamilyError(
                    f"{declaration.where}: the function that it names as exports returned {module!r}, and must return "
                    f"the module that exports {name}, such as FAMILY.load_host gives"
                ) from error
            raise InvalidFamilyError(
                f"{declaration.where} stands for a function that its module does not export. End its file with "
                f"SGL_EXPORT({name}, ({name})), and list the file in KernelFamily(host=[...]). A module of load_jit "
                f"with header_only=True names it in cpp_wrappers: ({name!r}, the C++ symbol)"
            ) from error
        try:
            result = call(*args)
        except TypeError as error:
            count = re.search(rf"{declared.__name__}\(\): expected (\d+) arguments?, got {len(args)}$", str(error))
            if count is None:
                raise
            raise InvalidFamilyError(
                f"{declaration.where} declares {len(args)} parameters, and the C++ function takes {count[1]}: declare "
                f"the same, in the same order"
            ) from error
        if (result is None) != declaration.only_writes:
            annotation = declaration.signature.return_annotation
            raise InvalidFamilyError(
                f"{declaration.where} says that it returns {getattr(annotation, '__name__', str(annotation))}, and the "
                f"C++ function returned {'None' if result is None else f'a {type(result).__name__}'}: the two must "
                f"return the same"
            )
        scope["sgl_body"] = call if log.observer is None else log.observer.around(declaration, call)
        return result

    return first
