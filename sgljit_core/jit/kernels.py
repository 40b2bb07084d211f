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
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sgljit_core import config
from sgljit_core.builds import recording
from sgljit_core.builds.obtain import obtain
from sgljit_core.compilers import arch
from sgljit_core.errors import InvalidBuildError, SgljitError
from sgljit_core.load import signatures
from sgljit_core.load.exceptions import passing
from sgljit_core.machine.forks import OncePerKey
from sgljit_core.specs.build import BuildSpec, Target

from .modules import load_module

if TYPE_CHECKING:
    from tvm_ffi import Module

    from sgljit_core.load.cubin import Cubin


class Sources(NamedTuple):
    """The sources of a family, and the writable root of the cache for all that is made of them."""

    family: str
    csrc: Path
    root: Path


_served: dict[str, Sources] = {}
_kernels: OncePerKey[tuple[Sources, str, str, str, int], int] = OncePerKey()  # file, expression, signature, device


def load_host(sources: Sources, spec: BuildSpec) -> Module:
    """Load a family's host part and answer its requests from now on."""
    if recording.active:
        recording.note(spec, sources.root)

    def preparation() -> Callable[[], None] | None:
        target = arch.target_in_use()  # of this thread's device
        return functools.partial(prepare, sources, target) if target else None

    module = load_module(spec, sources.root, preparation)
    _served[sources.family] = sources
    _register()  # not before: it imports tvm_ffi, for which a compile leaves time
    return module


@functools.cache
def _register() -> None:
    import tvm_ffi

    tvm_ffi.register_global_func("sgljit.variant", _answer_variant, override=True)
    tvm_ffi.register_global_func("sgljit.deferred", _answer_deferred, override=True)


def _sources_of(family: str, file: str) -> Sources:
    if family not in _served:
        raise InvalidBuildError(f"{file}: the host part of family {family!r} was not loaded by FAMILY.load_host")
    return _served[family]


@passing
def _answer_deferred(family: str, file: str, symbol: str, signature: str) -> int:
    """The address of a C++ function of the type that ``signature`` names. Called from C++, by any thread."""
    sources = _sources_of(family, file)
    spec = BuildSpec(
        markers=_markers(symbol),
        csrc=sources.csrc,
        target=arch.CPU,
        family=sources.family,
        cpp_files=(file,),
        cpp_wrappers=(("address", f"host::address_of<{symbol}>"), ("signature", f"host::signature_of<{symbol}>")),
    )
    if recording.active:
        return recording.note(spec, sources.root, signature).nothing
    return int(_load_deferred(spec, sources.root, signature).address())


def _load_deferred(spec: BuildSpec, root: Path, signature: str) -> Module:
    module = load_module(spec, root)
    own = ctypes.string_at(module.signature()).decode()
    signatures.check(f"the deferred function {_expression(spec)}", signature, own)
    return module


@passing
def _answer_variant(family: str, file: str, expression: str, signature: str, device_id: int) -> int:
    """The address of a kernel (a ``CUkernel``) of the type ``signature``. Called from C++, by any thread."""
    sources = _sources_of(family, file)

    def load() -> int:
        from sgljit_core.load import gpu

        spec = _spec(sources, file, expression, arch.device_target(device_id))
        if recording.active:
            # The number of the request, which a driver without a device gets back.
            return len(recording.note(spec, sources.root, signature).wanted)
        cubin = _obtain(spec, sources.root, signature)
        return gpu.load_kernel(cubin.image, cubin.symbol, device_id, spec.label, f"NVRTC {cubin.compiler}")

    return _kernels.get((sources, file, expression, signature, device_id), load)


def _expression(spec: BuildSpec) -> str:
    """The C++ expression of a kernel or a deferred function, with its file, for messages."""
    if spec.kernel:
        return f"{spec.kernel} of {spec.family}/{spec.cuda_files[0]}"
    symbol = spec.cpp_wrappers[0][1].removeprefix("host::address_of<").removesuffix(">")
    return f"{symbol} of {spec.family}/{spec.cpp_files[0]}"


def build(wanted: recording.Wanted) -> None:
    """Build what a recording noted, or find it in the cache. Needs no GPU.

    Raises as ``load_jit`` does, and SignatureError: a kernel or function does not take what the host part passes.
    """
    root = wanted.root or config.build_root(None)
    if (own := getattr(wanted.spec, "build", None)) is not None:  # that of a distribution with another compiler
        own(root)
    elif wanted.spec.kernel:
        _obtain(wanted.spec, root, wanted.signature)
    elif wanted.signature:
        _load_deferred(wanted.spec, root, wanted.signature)
    else:
        load_module(wanted.spec, root)


def build_kernel(sources: Sources, file: str, expression: str) -> Cubin:
    """The cubin of a kernel for the current target, from the cache or made now. Needs no GPU.

    Only the capability of the target counts: a launch asks for kernels made for exactly that of its device.
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


def _obtain(spec: BuildSpec, root: Path, signature: str = "") -> Cubin:
    """A kernel's cubin. Raises SignatureError where the kernel's type is not ``signature``, if that is given."""
    from .cubins import KernelRequest  # with NVRTC, which a family without a GPU does not need

    cubin = obtain(lambda: KernelRequest(spec, root))
    if signature:
        signatures.check(f"the kernel {_expression(spec)}", signature, cubin.signature)
    return cubin


_MOST_PRECOMPILED = 4  # files of a family, at 0.1 s each; those of the rest are made with their first kernels


def prepare(sources: Sources, target: Target) -> None:
    """Have NVRTC ready. An error is dropped: it comes again, with its full text, when a kernel is asked for."""
    from .cubins import KernelRequest, device_files

    with contextlib.suppress(SgljitError, OSError):
        for file in device_files(sources.csrc)[:_MOST_PRECOMPILED]:
            KernelRequest(_spec(sources, file, sources.family, arch.exact(target)), sources.root).precompile()
