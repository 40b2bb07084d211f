"""How does a host part get its device kernels, and its heavy C++?

A host part (``sgl_kernel/variant.h``) asks for a kernel by the C++ expression that names it, the first time it is
launched on a device. The kernel is found in the cache or made by NVRTC, on the same keys, tiers and rules as a
module; then the driver loads it on that device. A deferred C++ function (``sgl_kernel/deferred.h``) is a module of its
own, loaded when it is first called. Nothing here is on the path of a second call.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sgljit_core import paths
from sgljit_core.cache import keys
from sgljit_core.compilers import arch, includes, nvrtc
from sgljit_core.errors import CompileError, InvalidBuildError, SgljitError, SourceChangedError
from sgljit_core.load import gpu
from sgljit_core.load.cubin import Cubin
from sgljit_core.load.exceptions import passing
from sgljit_core.machine.forks import KeyedLocks
from sgljit_core.model.build import BuildSpec, Target

from . import obtain
from .modules import ATTEMPTS, include_roots, load_jit, with_plugin
from .obtain import Product, Recipe

if TYPE_CHECKING:
    from tvm_ffi import Module

__all__ = ["build", "load_deferred", "prepare", "serve"]

_PAYLOAD = "kernel.cubin"
_BOUNDS = r"(?:__launch_bounds__\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\s*)?(?://[^\n]*\s*)?"
_GLOBAL = re.compile(
    rf"(?P<template>template\s*<[^;{{}}]*?>\s*)?__global__\s+{_BOUNDS}\w[\w:]*\s+{_BOUNDS}(?P<name>\w+)\s*\("
)


_sources: dict[str, Path] = {}
# A kernel's address and the number of its parameters.
_kernels: dict[tuple[str, str, str, int], tuple[int, int]] = {}
_locks = KeyedLocks()


def serve(family: str, csrc: Path) -> None:
    """Answer the requests of a family's host part, whose device files lie in ``csrc``."""
    _sources[family] = csrc
    _register()


@functools.cache
def _register() -> None:
    import tvm_ffi

    answers: dict[str, Callable[..., int]] = {
        "variant": _answer_variant,
        "variant_params": _answer_variant_params,
        "deferred": _answer_deferred,
    }
    for question, answer in answers.items():
        tvm_ffi.register_global_func(f"sgljit.{question}", passing(answer), override=True)


def _csrc(family: str, file: str) -> Path:
    if family not in _sources:
        raise InvalidBuildError(f"{file}: the host part of family {family!r} was not loaded by FAMILY.load_host")
    return _sources[family]


def _answer_deferred(family: str, file: str, symbol: str, signature: str) -> int:
    """The address of a C++ function of type ``signature``. Called from C++, by any thread."""
    module = load_deferred(family, _csrc(family, file), file, symbol)
    try:
        address: int = module.address(signature)
    except TypeError as error:
        raise TypeError(f"{symbol} in {family}/{file}: {error}") from error
    return address


def load_deferred(family: str, csrc: Path, file: str, symbol: str) -> Module:
    """The module of a deferred C++ function, from the cache or compiled now."""
    return load_jit(
        symbol.replace("::", "."),
        cpp_files=[file],
        cpp_wrappers=[("address", f"host::address_of<{symbol}>")],
        csrc=csrc,
        family=family,
    )


def _answer_variant(family: str, file: str, expression: str, device_id: int) -> int:
    """The address of a kernel (a ``CUfunction``) on a device. Called from C++, by any thread."""
    return _load(family, file, expression, device_id)[0]


def _answer_variant_params(family: str, file: str, expression: str, device_id: int) -> int:
    """How many parameters that kernel takes, -1 if its cubin does not tell. Called from C++, by any thread."""
    return _load(family, file, expression, device_id)[1]


def _load(family: str, file: str, expression: str, device_id: int) -> tuple[int, int]:
    csrc = _csrc(family, file)
    wanted = (family, file, expression, device_id)
    with _locks[wanted]:
        if wanted not in _kernels:
            spec = _spec(family, csrc, file, expression, arch.device_target(device_id))
            cubin = _obtain(spec)
            function = gpu.load_kernel(cubin.image, cubin.symbol, device_id, spec.label, cubin.compiler)
            _kernels[wanted] = function, cubin.num_params()
        return _kernels[wanted]


def build(family: str, csrc: Path, file: str, expression: str) -> Cubin:
    """The cubin of a kernel for the current target, from the cache or made now. Needs no GPU.

    Of the target only the capability counts: a launch asks for kernels made for exactly that of its device.

    Args:
        file: the device file, relative to ``csrc``.
        expression: the kernel as C++ names it, ``norm::rmsnorm<4096, true, bf16_t>``.

    Raises:
        CompileError: it does not compile; the text has the kernels that there are.
        ToolchainNotFoundError: it must be made and there is no NVRTC.
    """
    return _obtain(_spec(family, csrc, file, expression, arch.exact(arch.cuda_target())))


def _spec(family: str, csrc: Path, file: str, expression: str, target: Target) -> BuildSpec:
    name, _, arguments = expression.removesuffix(">").partition("<")
    return BuildSpec(
        markers=(name.replace("::", "."), *filter(None, arguments.split(", "))),
        csrc=csrc,
        target=target,
        family=family,
        cuda_files=(file,),
        kernel=expression,
        carried=paths.carried_artifacts(csrc),
    )


def prepare(family: str, csrc: Path, target: Target) -> None:
    """Have NVRTC ready for a family's first kernel: load it and precompile what all device files begin with.

    For the time in which a host part is compiled, since both take as long as a kernel. What goes wrong here is no
    error: it will be one, with all that there is to say, when a kernel is asked for.
    """
    with contextlib.suppress(SgljitError, nvrtc.RejectedSourceError, OSError):
        compiler = nvrtc.find_nvrtc(family)
        files = _device_files(csrc)
        if not files:
            return
        spec = _spec(family, csrc, files[0], family, target)
        roots = include_roots(spec)
        nvrtc.precompile_headers(compiler, _INCLUDE_DEVICE, _options(spec, roots, compiler), _headers(spec, roots))


# The names of element types come first, as a dtype among the template arguments is one of them.
_INCLUDE_DEVICE = "#include <sgl_kernel/device.cuh>\n"


def _sources_of(spec: BuildSpec) -> tuple[list[includes.Root], str, includes.Scan]:
    """Where a device file's includes are searched, the text that is compiled, and what it reaches."""
    roots = include_roots(spec)
    generated = f'{_INCLUDE_DEVICE}#include "{spec.cuda_files[0]}"\n'
    return roots, generated, includes.scan(spec.cuda_files, roots, generated)


def _headers(spec: BuildSpec, roots: Sequence[includes.Root]) -> str:
    """What identifies the content of all that a device file and its neighbours include: they share precompiled headers.

    A file that lies elsewhere, below another directory of csrc, has its own.
    """
    device_files = sorted({*_device_files(spec.csrc), *spec.cuda_files})
    text = "".join((_INCLUDE_DEVICE, *(f'#include "{name}"\n' for name in device_files)))
    return keys.key(includes.scan(device_files, roots, text).files)


def _device_files(csrc: Path) -> list[str]:
    """Those that can be read; an editor's lock is a link to nowhere."""
    return sorted(path.name for path in csrc.glob("*.cuh") if path.is_file() and os.access(path, os.R_OK))


def _options(spec: BuildSpec, roots: Sequence[includes.Root], compiler: nvrtc.Nvrtc) -> list[str]:
    return [*_flags(spec.target), *(f"-I{root.directory}" for root in roots), f"-I{compiler.include}"]


def _obtain(spec: BuildSpec) -> Cubin:
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(SourceChangedError):
            return _obtain_once(spec)
    return _obtain_once(spec)


def _obtain_once(spec: BuildSpec) -> Cubin:
    roots, generated, scan = _sources_of(spec)
    return obtain.obtain(
        Recipe(
            build=spec,
            source=keys.variant_ingredients(spec, generated, scan, _flags(spec.target)),
            payload=_PAYLOAD,
            named=lambda: with_plugin(spec),
            toolchain=_toolchain,
            make=functools.partial(_make, generated=generated, roots=roots),
            is_current=scan.is_current,
            load=Cubin.unpacked,
            serves=_serves,
        ),
        paths.cache_root(),
    )


def _flags(target: Target) -> tuple[str, ...]:
    assert target.cuda_arch is not None
    major, minor = target.cuda_arch
    return (
        f"--gpu-architecture={target.name}",
        "-std=c++20",
        "-default-device",  # constexpr functions that host and device share need no annotation
        f"-DSGL_CUDA_ARCH={major * 100 + minor * 10}",
    )


def _toolchain(needed_for: str) -> dict[str, str]:
    found = nvrtc.find_nvrtc(needed_for)
    return {"nvrtc": found.version, "cuda headers": found.headers}


def _serves(toolchain: Mapping[str, str]) -> bool:
    """Whether the driver here, if there is one, runs what another NVRTC made: not one of a later CUDA."""
    major = gpu.supported_major()
    return major is None or int(toolchain["nvrtc"].partition(".")[0]) <= major


def _make(spec: BuildSpec, directory: Path, *, generated: str, roots: Sequence[includes.Root]) -> Product:
    compiler = nvrtc.find_nvrtc(spec.label)
    options = _options(spec, roots, compiler)
    (directory / "variant.cu").write_text(generated)
    command = f"nvrtc {' '.join(options)} variant.cu  # {spec.kernel}"
    try:
        image, symbol = nvrtc.compile_kernel(compiler, generated, spec.kernel, options, _headers(spec, roots))
    except nvrtc.RejectedSourceError as error:
        if "invalid value for --gpu-architecture" in str(error):  # one text for all variants, to be told once
            raise nvrtc.unknown_target(compiler, spec.target.name, f"the kernels of {spec.family}") from error
        raise CompileError(
            build=spec.label,
            first_error=_first_error(spec, str(error)),
            command=command,
            log=str(error),
            build_directory=directory,
        ) from error
    payload = directory / _PAYLOAD
    payload.write_bytes(Cubin(image, symbol, compiler.version).packed())
    return Product(payload, command, {})


def _first_error(spec: BuildSpec, log: str) -> str:
    """The line of the log that says what is wrong, in the terms of somebody who writes a device file."""
    missing = re.search(r'^(.+?)\(\d+\): .*(?:cannot|could not) open source file "([^"]+)"', log, re.MULTILINE)
    if missing is not None:
        return _missing_header(spec, missing[1], missing[2])
    first = next((line.strip() for line in log.splitlines() if "error" in line), log.partition("\n")[0])
    if first.startswith("__nv_name_map"):
        first = f"{spec.kernel}: {first.partition('error: ')[2]}. {_names_in(spec)}"
    return first


# No device code: C++'s headers without a suffix, and libraries of the host.
_OF_THE_HOST = re.compile(r"[a-z_0-9]+|(c?std\w+|string|math|pthread|unistd)\.h|(dlpack|tvm|torch|ATen|c10)/.*")


def _missing_header(spec: BuildSpec, includer: str, header: str) -> str:
    rule = "A device file includes CUDA's device headers, the device headers of sgl_kernel, and files of its own"
    if not _OF_THE_HOST.fullmatch(header):
        near = sorted(path.name for path in spec.csrc.glob("*.*h"))
        return f"{includer} includes <{header}>, which is not there. {rule}; csrc holds {', '.join(near)}"
    if not Path(includer).is_relative_to(spec.csrc):
        # NVRTC does not say by which way it came there.
        own = [f"{path.name}: <{name}>" for path, name in _core_headers_of_the_host(spec)]
        includer = f"{', '.join(own) or includer} leads to {Path(includer).name}, which"
    return f"{includer} includes <{header}>, which is for the host. {rule}"


def _core_headers_of_the_host(spec: BuildSpec) -> Iterator[tuple[Path, str]]:
    """The includes of a family's device files that name a header of the core for the host."""
    core = paths.core_include()
    for path in spec.csrc.glob("*.cuh"):
        for name in re.findall(r"#\s*include\s*<(sgl_kernel/[^>]+)>", path.read_text(errors="replace")):
            header = core / name
            reached = includes.scan([], [includes.Root("core:", core)], f"#include <{name}>\n").files
            if header.is_file() and "core:/sgl_kernel/message.h" in reached:
                yield path, name


def _names_in(spec: BuildSpec) -> str:
    """The kernels in a device file, as they are declared there."""
    text = (spec.csrc / spec.cuda_files[0]).read_text(errors="replace")
    found = []
    for match in _GLOBAL.finditer(text):
        declaration = " ".join([*(match["template"] or "").split(), match["name"]])
        found.append(f"line {text.count(chr(10), 0, match.start()) + 1}: {declaration}")
    names = "; ".join(found) if found else "no __global__ function of its own"
    return f"{spec.cuda_files[0]} has {names}. A kernel is named with its namespace"
