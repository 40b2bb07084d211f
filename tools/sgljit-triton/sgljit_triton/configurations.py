"""Which configurations does an autotuned kernel declare? Read from its file, without Triton.

``@triton.autotune(configs=[triton.Config({"BLOCK": 64}, num_warps=4), ...], key=["n"])`` stands above ``@triton.jit``.
The list is evaluated with a stand-in for ``triton.Config``, with Python's own functions, ``math``, and the constants
and functions of the file. For more, Triton would have to be imported, also on a machine that needs none.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import math
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

from sgljit_core.errors import InvalidBuildError

Configuration = Mapping[str, Any]


class Autotuned(NamedTuple):
    """The declaration of ``@triton.autotune``.

    Attributes:
        configurations: constants and options of each, in their order.
        key: the parameters whose values decide which one is fastest.
    """

    configurations: tuple[Configuration, ...]
    key: tuple[str, ...]


def read(where: str, decorator: ast.expr, tree: ast.Module, names: frozenset[str]) -> Autotuned:
    """Read the decorator of a kernel with parameters of these ``names``. Raises InvalidBuildError."""
    given = dict(zip(("configs", "key"), decorator.args, strict=False)) if isinstance(decorator, ast.Call) else {}
    if isinstance(decorator, ast.Call):
        given |= {str(keyword.arg): keyword.value for keyword in decorator.keywords}
    if given.keys() != {"configs", "key"} or not isinstance(decorator, ast.Call) or len(decorator.args) > 2:
        raise InvalidBuildError(
            f"{where} has @{ast.unparse(decorator)}; expected @triton.autotune(configs=[...], key=[...]) and nothing "
            f"else"
        )
    namespace = _namespace(tree)
    try:
        configs, key = (
            eval(compile(ast.Expression(given[one]), where, "eval"), namespace)  # noqa: S307 - code of the package
            for one in ("configs", "key")
        )
        configurations = tuple(types.MappingProxyType(dict(one)) for one in configs)
        key = tuple(key)
    except InvalidBuildError as error:
        raise InvalidBuildError(f"{where}: {error}") from None
    except Exception as error:
        raise InvalidBuildError(
            f"{where}: the configurations of @triton.autotune cannot be read without Triton: {type(error).__name__}: "
            f"{error}. Write a list of triton.Config(...), of names of this file, math and Python's own functions"
        ) from error
    unknown = [repr(one) for one in key if one not in names]
    if not configurations or unknown:
        what = f"the key has {', '.join(unknown)}, no parameter of it" if unknown else "@triton.autotune has no configs"
        raise InvalidBuildError(f"{where}: {what}")
    return Autotuned(configurations, key)


def _namespace(tree: ast.Module) -> dict[str, Any]:
    """The values of names of the file, as far as they need no Triton."""
    namespace: dict[str, Any] = {"__builtins__": builtins, "math": math}
    namespace["triton"] = types.SimpleNamespace(Config=_config)
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) or (
            isinstance(node, ast.FunctionDef) and not node.decorator_list
        ):
            # A name that needs Triton gets no value; if the configurations use it, that is an error.
            with contextlib.suppress(Exception):
                exec(compile(ast.Module([node], []), "kernel file", "exec"), namespace)  # noqa: S102
    return namespace


def _config(kwargs: Mapping[str, Any], num_warps: int = 4, num_stages: int = 3, **others: Any) -> dict[str, Any]:
    """``triton.Config``, with its defaults."""
    unknown = [f"{name}={value!r}" for name, value in others.items() if name != "maxnreg" and value is not None]
    if unknown and unknown != ["num_ctas=1"]:
        raise InvalidBuildError(f"triton.Config has {', '.join(unknown)}; expected num_warps, num_stages and maxnreg")
    options = {"num_warps": num_warps, "num_stages": num_stages, "maxnreg": others.get("maxnreg")}
    return {**kwargs, **{name: value for name, value in options.items() if value is not None}}
