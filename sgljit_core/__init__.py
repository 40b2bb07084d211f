"""sgljit: kernels that compile on first use, from many packages.

``ops["norm"].rmsnorm(x, w)`` calls an op of an installed family; ``load_jit`` compiles a kernel of your own;
``KernelFamily``, ``Op`` and ``hookimpl`` declare a family in a plugin. Importing this package imports no torch,
touches no GPU and creates no file: names are resolved when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .builds.extensions import provide

if TYPE_CHECKING:
    from . import cache, errors
    from .builds.modules import load_jit
    from .builds.parallel import parallel_compile
    from .builds.policy import freeze, why
    from .builds.record import stats
    from .compilers.arch import is_arch_support_pdl, override_cuda_arch
    from .families.family import KernelFamily
    from .families.forwarding import exported
    from .families.hookspecs import hookimpl
    from .families.memo import cache_once
    from .families.registry import ops
    from .model.arguments import CppEnum, make_cpp_args
    from .model.build import Op

__all__ = [
    "CppEnum",
    "KernelFamily",
    "Op",
    "__version__",
    "cache",
    "cache_once",
    "errors",
    "exported",
    "freeze",
    "hookimpl",
    "is_arch_support_pdl",
    "load_jit",
    "make_cpp_args",
    "ops",
    "override_cuda_arch",
    "parallel_compile",
    "stats",
    "why",
]

_HOMES = {
    "CppEnum": "model.arguments",
    "KernelFamily": "families.family",
    "Op": "model.build",
    "cache_once": "families.memo",
    "exported": "families.forwarding",
    "freeze": "builds.policy",
    "hookimpl": "families.hookspecs",
    "is_arch_support_pdl": "compilers.arch",
    "load_jit": "builds.modules",
    "make_cpp_args": "model.arguments",
    "ops": "families.registry",
    "override_cuda_arch": "compilers.arch",
    "parallel_compile": "builds.parallel",
    "stats": "builds.record",
    "why": "builds.policy",
}
_MODULES = ("cache", "errors")


def _plugins() -> Any:
    from .families.extensions import Plugins

    return Plugins()


provide(_plugins)  # the build engine knows no plugins by itself


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
