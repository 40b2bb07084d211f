"""What does a kernel's file declare? Read from its text, without Triton.

A kernel file is the counterpart of a device file: it imports Triton and files beside it, and nothing else. So its text,
with that of the files that it imports, decides what is compiled, and a machine without Triton computes the same keys.
Triton itself hashes the functions that it reaches while it runs the module: that needs Triton on a warm start.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from sgljit_core.errors import InvalidBuildError, SourceNotFoundError

from . import configurations
from .configurations import Autotuned

_ALLOWED = frozenset({"__future__", "math", "triton", "typing"})
_OPTIONS_OF_JIT = ("do_not_specialize", "do_not_specialize_on_alignment")


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel.

    Attributes:
        is_constexpr: annotated as ``tl.constexpr``.
        kind: what Triton specialises: "s" alignment and ones, "a" ones alone, "n" neither.
        default: the text of a constexpr's default, a literal; None where there is none.
    """

    name: str
    is_constexpr: bool
    kind: str
    default: str | None


@dataclass(frozen=True)
class Declared:
    """A kernel as its file declares it.

    Attributes:
        files: that file and those that it imports, relative to ``csrc``.
        autotuned: its configurations; None if it has none.
    """

    parameters: tuple[Parameter, ...]
    files: tuple[str, ...]
    autotuned: Autotuned | None = None


def read(csrc: Path, file: str, kernel: str) -> Declared:
    """Read the declaration of a kernel.

    Raises:
        SourceNotFoundError: there is no such file.
        InvalidBuildError: it has no such kernel, the kernel cannot be described, or a file imports something else.
    """
    trees = _trees(csrc, file)
    where = f"{file}: kernel {kernel}"
    found = [node for node in trees[file].body if isinstance(node, ast.FunctionDef) and node.name == kernel]
    if not found:
        kernels = [n.name for n in trees[file].body if isinstance(n, ast.FunctionDef) and n.decorator_list]
        raise InvalidBuildError(f"{where} is not in the file, which has {', '.join(kernels) or 'none'}")
    function = found[-1]
    decorators = function.decorator_list
    options = _options(where, function, decorators[-1] if 1 <= len(decorators) <= 2 else None)
    arguments = function.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
        raise InvalidBuildError(f"{where}: its parameters must be positional, without * and **")
    names = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(names) - len(arguments.defaults))
    parameters = tuple(
        _parameter(where, i, parameter, default, options)
        for i, (parameter, default) in enumerate(zip(names, [*defaults, *arguments.defaults], strict=True))
    )
    autotuned = None
    if len(decorators) == 2:
        known = frozenset(parameter.name for parameter in parameters)
        autotuned = configurations.read(where, decorators[0], trees[file], known)
    return Declared(parameters, tuple(trees), autotuned)


def _trees(csrc: Path, file: str) -> dict[str, ast.Module]:
    """The syntax trees of a file and of those that it imports, by name; the file first."""
    trees: dict[str, ast.Module] = {}
    pending = [file]
    while pending:
        name = pending.pop()
        if name in trees:
            continue
        path = csrc / name
        if path.with_suffix("").is_dir():  # Python would import the directory
            raise InvalidBuildError(
                f"{csrc.name}/{name} stands beside a directory of the same name; rename one of them"
            )
        try:
            trees[name] = ast.parse(path.read_bytes(), name)
        except (FileNotFoundError, NotADirectoryError):
            there = sorted(one.name for one in csrc.glob("*.py"))
            raise SourceNotFoundError(
                f"kernel file {name!r} not found in {csrc}; that directory holds: {', '.join(there) or 'no .py file'}"
            ) from None
        except SyntaxError as error:
            raise InvalidBuildError(f"{name}, line {error.lineno}: {error.msg}") from error
        pending += _imported(csrc, name, trees[name])
    return trees


def _imported(csrc: Path, name: str, tree: ast.Module) -> Iterator[str]:
    """The files beside it that a file imports. Raises InvalidBuildError where it imports something else."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules: Sequence[str] = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules = [node.module or ""]
        elif isinstance(node, ast.ImportFrom) and node.level == 1:
            for module in [node.module] if node.module else [alias.name for alias in node.names]:
                yield str(PurePosixPath(name).parent / f"{module.replace('.', '/')}.py")
            continue
        elif isinstance(node, ast.ImportFrom):
            modules = ["." * node.level + (node.module or "")]
        else:
            continue
        for module in modules:
            if module.partition(".")[0] not in _ALLOWED:
                raise InvalidBuildError(
                    f"{csrc.name}/{name}, line {node.lineno} imports {module}: a kernel file imports "
                    f"{', '.join(sorted(_ALLOWED))} and files beside it, so that these decide what is compiled. "
                    f"Put what a launch needs into the op's own module"
                )


def _options(where: str, function: ast.FunctionDef, decorator: ast.expr | None) -> dict[str, Sequence[Any]]:
    """The options of ``@triton.jit``, the innermost decorator."""
    if decorator is not None:
        call = decorator if isinstance(decorator, ast.Call) else None
        if ast.unparse(call.func if call else decorator) in ("triton.jit", "jit"):
            found = {keyword.arg: keyword.value for keyword in (call.keywords if call else ())}
            try:
                if not (call and call.args) and found.keys() <= set(_OPTIONS_OF_JIT):
                    return {name: tuple(ast.literal_eval(value)) for name, value in found.items() if name}
            except (ValueError, TypeError):
                pass
    written = " ".join(f"@{ast.unparse(one)}" for one in function.decorator_list) or "no decorator"
    raise InvalidBuildError(
        f"{where} has {written}; expected @triton.jit, with at most {' and '.join(_OPTIONS_OF_JIT)} as lists of names, "
        f"and at most @triton.autotune above it. The op passes other constants to bind()"
    )


def _parameter(
    where: str, index: int, node: ast.arg, default: ast.expr | None, options: dict[str, Sequence[Any]]
) -> Parameter:
    annotation = ast.unparse(node.annotation).strip("'\"") if node.annotation else ""
    is_constexpr = annotation in ("tl.constexpr", "constexpr", "triton.language.constexpr")
    if annotation and not is_constexpr:
        raise InvalidBuildError(
            f"{where}: parameter {node.arg} is annotated with {annotation}; expected tl.constexpr or no annotation"
        )
    names = (index, node.arg)
    plain, unaligned = (any(one in options.get(option, ()) for one in names) for option in _OPTIONS_OF_JIT)
    text = None
    if default is not None and is_constexpr:
        try:
            text = repr(ast.literal_eval(default))
        except ValueError:
            text = None
    return Parameter(node.arg, is_constexpr, "n" if plain else "a" if unaligned else "s", text)
