"""How does a wrapper keep the modules it has loaded?"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from sgljit_core.compilers import arch
from sgljit_core.machine.forks import OncePerKey
from sgljit_core.torch_ops.tracing import Constant, torch_compiler

P = ParamSpec("P")
R = TypeVar("R")


def cache_once(function: Callable[P, R]) -> Callable[P, R]:
    """Call ``function`` once for each set of arguments and keep its result for the process.

    Unlike ``functools.lru_cache`` it calls the function once even when threads race for the same arguments, is a
    constant to torch.compile, and gives ``override_cuda_arch`` and devices of another capability a result of their
    own. Arguments must be hashable. An exception is not kept: the next call tries again.
    """
    results: OncePerKey[Any, R] = OncePerKey()

    def look_up(*args: Any, **kwargs: Any) -> R:
        # The types belong to the key: 1, 1.0 and True are equal, but other template arguments.
        named = tuple((name, type(kwargs[name]), kwargs[name]) for name in sorted(kwargs)) if kwargs else ()
        return results.get((arch.scope(), args, tuple(map(type, args)), named), lambda: function(*args, **kwargs))

    traced = Constant(look_up)

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch_compiler.is_compiling():
            return traced.call(*args, **kwargs)  # type: ignore[no-any-return]
        return look_up(*args, **kwargs)

    return wrapper
