"""Instant variants: how a host part gets its device kernels, and its heavy C++.

A host part (``sgl_kernel/variant.h``) asks for a kernel by the C++ expression that names it, the first time it is
launched on a device. The kernel is found in the cache or made by NVRTC, on the same keys, tiers and rules as a
module; then the driver loads it on that device. A deferred C++ function (``sgl_kernel/deferred.h``) is a module of its
own, loaded when it is first called. Nothing here is on the path of a second call.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sgljit_core.compilers import arch
from sgljit_core.errors import InvalidBuildError, SgljitError
from sgljit_core.load import signatures
from sgljit_core.load.exceptions import passing
from sgljit_core.machine.forks import OncePerKey
from sgljit_core.model.build import BuildSpec, Target

from .modules import load_module
from .obtain import obtain, until_current

if TYPE_CHECKING:
    from tvm_ffi import Module

    from sgljit_core.load.cubin import Cubin


@dataclass(frozen=True)
class Sources:
    """The sources of a family, and where all that is made of them is kept.

    Attributes:
        family: the family's name.
        csrc: the directory of its sources.
        root: the writable root of the cache.
    """

    family: str
    csrc: Path
    root: Path


_served: dict[str, Sources] = {}
# A kernel's address, by sources, file, expression, signature and device.
_kernels: OncePerKey[tuple[Sources, str, str, str, int], int] = OncePerKey()


def load_host(sources: Sources, spec: BuildSpec) -> Module:
    """Load a family's host part and answer its requests from now on."""
    target = arch.target_in_use()
    beside = functools.partial(prepare, sources, target) if target else None
    module = load_module(spec, sources.root, beside)
    _served[sources.family] = sources
    _register()  # not before: it imports tvm_ffi, for which a compile leaves time
    return module


@functools.cache
def _register() -> None:
    import tvm_ffi

    answers: dict[str, Callable[..., int]] = {
        "variant": _answer_variant,
        "deferred": _answer_deferred,
    }
    for question, answer in answers.items():
        tvm_ffi.register_global_func(f"sgljit.{question}", passing(answer), override=True)


def _sources_of(family: str, file: str) -> Sources:
    if family not in _served:
        raise InvalidBuildError(f"{file}: the host part of family {family!r} was not loaded by FAMILY.load_host")
    return _served[family]


def _answer_deferred(family: str, file: str, symbol: str, signature: str) -> int:
    """The address of a C++ function of the type that ``signature`` names. Called from C++, by any thread."""
    module = load_deferred(_sources_of(family, file), file, symbol)
    own = ctypes.string_at(module.signature()).decode()
    signatures.check(f"the deferred function {symbol} of {family}/{file}", signature, own)
    address: int = module.address()
    return address


def load_deferred(sources: Sources, file: str, symbol: str) -> Module:
    """The module of a deferred C++ function, from the cache or compiled now."""
    spec = BuildSpec(
        markers=_markers(symbol),
        csrc=sources.csrc,
        target=arch.cpu_target(),
        family=sources.family,
        cpp_files=(file,),
        cpp_wrappers=(("address", f"host::address_of<{symbol}>"), ("signature", f"host::signature_of<{symbol}>")),
    )
    return load_module(spec, sources.root)


def _answer_variant(family: str, file: str, expression: str, signature: str, device_id: int) -> int:
    """The address of a kernel (a ``CUfunction``) on a device, if it has the type that ``signature`` names.

    Called from C++, by any thread.
    """
    sources = _sources_of(family, file)

    def load() -> int:
        from sgljit_core.load import gpu

        spec = _spec(sources, file, expression, arch.device_target(device_id))
        cubin = _obtain(spec, sources.root)
        signatures.check(f"the kernel {expression} of {family}/{file}", signature, cubin.signature)
        return gpu.load_kernel(cubin.image, cubin.symbol, device_id, spec.label, cubin.compiler)

    return _kernels.get((sources, file, expression, signature, device_id), load)


def build_kernel(sources: Sources, file: str, expression: str) -> Cubin:
    """The cubin of a kernel for the current target, from the cache or made now. Needs no GPU.

    Only the capability of the target counts: a launch asks for kernels made for exactly that of its device.

    Args:
        file: the device file, relative to ``csrc``.
        expression: the kernel as C++ names it, ``norm::rmsnorm<4096, true, bf16_t>``.

    Raises:
        CompileError: it does not compile; the text has the kernels that there are.
        ToolchainNotFoundError: it must be made and there is no NVRTC.
    """
    return _obtain(_spec(sources, file, expression, arch.exact(arch.cuda_target())), sources.root)


def _spec(sources: Sources, file: str, expression: str, target: Target) -> BuildSpec:
    return BuildSpec(
        markers=_markers(expression),
        csrc=sources.csrc,
        target=target,
        family=sources.family,
        cuda_files=(file,),
        kernel=expression,
    )


def _markers(expression: str) -> tuple[str, ...]:
    """A name and its template arguments, of a C++ expression."""
    name, _, arguments = expression.removesuffix(">").partition("<")
    return (name.replace("::", "."), *filter(None, arguments.split(", ")))


def _obtain(spec: BuildSpec, root: Path) -> Cubin:
    from .cubins import KernelRequest  # with NVRTC, which a family without a GPU does not need

    return until_current(lambda: obtain(KernelRequest(spec, root)))


def prepare(sources: Sources, target: Target) -> None:
    """Have NVRTC ready for a family's first kernel, in the time in which a host part is compiled.

    An error here is dropped: it comes again, with all that there is to say, when a kernel is asked for.
    """
    from .cubins import precompile

    with contextlib.suppress(SgljitError, OSError):
        precompile(lambda file: _spec(sources, file, sources.family, target), sources.csrc)
