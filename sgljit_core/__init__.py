"""sgljit: kernels that compile on first use, from many packages.

``ops["norm"].rmsnorm(x, w)`` calls an op of an installed family; ``load_jit`` compiles a kernel of your own;
``KernelFamily`` and ``hookimpl`` declare a family in a plugin. Importing this package imports no torch, touches no GPU
and creates no file: names are resolved when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._version import __version__

if TYPE_CHECKING:
    from . import errors
    from .builds.parallel import parallel_compile
    from .builds.policy import freeze, why
    from .builds.record import stats
    from .compilers.arch import is_arch_support_pdl, override_cuda_arch
    from .families.family import KernelFamily, Op
    from .families.memo import cache_once
    from .families.registry import ops, register_all
    from .jit.modules import load_jit
    from .plugins.hookspecs import hookimpl
    from .specs.arguments import CppEnum, CppType, make_cpp_args
    from .specs.calls import TOKENS, Addresses, TensorSpec
else:
    from .lazy import attributes

    __getattr__, __dir__ = attributes(
        __name__,
        {
            "": ("errors",),
            "jit.modules": ("load_jit",),
            "builds.parallel": ("parallel_compile",),
            "builds.policy": ("freeze", "why"),
            "builds.record": ("stats",),
            "compilers.arch": ("is_arch_support_pdl", "override_cuda_arch"),
            "families.family": ("KernelFamily", "Op"),
            "plugins.hookspecs": ("hookimpl",),
            "families.memo": ("cache_once",),
            "families.registry": ("ops", "register_all"),
            "specs.arguments": ("CppEnum", "CppType", "make_cpp_args"),
            "specs.calls": ("TOKENS", "Addresses", "TensorSpec"),
        },
    )

__all__ = [
    "TOKENS",
    "Addresses",
    "CppEnum",
    "CppType",
    "KernelFamily",
    "Op",
    "TensorSpec",
    "__version__",
    "cache_once",
    "errors",
    "freeze",
    "hookimpl",
    "is_arch_support_pdl",
    "load_jit",
    "make_cpp_args",
    "ops",
    "override_cuda_arch",
    "parallel_compile",
    "register_all",
    "stats",
    "why",
]
