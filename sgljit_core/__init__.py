"""sgljit: kernels that compile on first use, from many packages.

``ops["norm"].rmsnorm(x, w)`` calls an op of an installed family; ``load_jit`` compiles a kernel of your own;
``KernelFamily`` and ``hookimpl`` declare a family in a plugin. Importing this package imports no torch, touches no GPU
and creates no file: names are resolved when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazy import attributes

# The public names, by the modules that have them; under "" the submodules.
_HOMES = {
    "": ("errors",),
    "_version": ("__version__",),
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
}

__all__ = [  # type checkers read no other form; a test compares both
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

if TYPE_CHECKING:  # which type checkers take for public names by the "as"
    from . import errors as errors
    from ._version import __version__ as __version__
    from .builds.parallel import parallel_compile as parallel_compile
    from .builds.policy import freeze as freeze, why as why
    from .builds.record import stats as stats
    from .compilers.arch import is_arch_support_pdl as is_arch_support_pdl, override_cuda_arch as override_cuda_arch
    from .families.family import KernelFamily as KernelFamily, Op as Op
    from .families.memo import cache_once as cache_once
    from .families.registry import ops as ops, register_all as register_all
    from .jit.modules import load_jit as load_jit
    from .plugins.hookspecs import hookimpl as hookimpl
    from .specs.arguments import CppEnum as CppEnum, CppType as CppType, make_cpp_args as make_cpp_args
    from .specs.calls import TOKENS as TOKENS, Addresses as Addresses, TensorSpec as TensorSpec
else:
    __getattr__, __dir__ = attributes(__name__, _HOMES)
