"""One device kernel, made by NVRTC: its request, its sources, and what NVRTC's errors mean to an author."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from sgljit_core import paths
from sgljit_core.cache import keys
from sgljit_core.compilers import includes, nvrtc
from sgljit_core.errors import CompileError
from sgljit_core.load import gpu
from sgljit_core.load.cubin import Cubin
from sgljit_core.specs.build import BuildSpec, Product, Target

from .modules import include_roots
from .request import Request

# The names of element types come first, as a dtype among the template arguments is one of them.
_INCLUDE_DEVICE = "#include <sgl_kernel/device.cuh>\n"
_ROW_OPERATION = re.compile(rb"<sgl_kernel/row_(map|reduce)\.h>")
_BOUNDS = r"(?:__launch_bounds__\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\s*)?(?://[^\n]*\s*)?"
_GLOBAL = re.compile(
    rf"(?P<template>template\s*<[^;{{}}]*?>\s*)?__global__\s+{_BOUNDS}\w[\w:]*\s+{_BOUNDS}(?P<name>\w+)\s*\("
)


class KernelRequest(Request[Cubin]):
    """A request for a device kernel as machine code."""

    payload = "kernel.cubin"

    def __init__(self, spec: BuildSpec, root: Path) -> None:
        self._roots = include_roots(spec)
        self._generated = _source(spec.cuda_files[0])
        scan = includes.scan(spec.cuda_files, self._roots, self._generated)
        source = keys.source_ingredients(spec, {"variant.cu": self._generated}, scan, {"nvrtc": _flags(spec.target)})
        super().__init__(spec, root, source, scan)

    def find_tools(self, needed_for: str) -> Mapping[str, str]:
        found = nvrtc.find_nvrtc(needed_for)
        return {"nvrtc": found.version, "cuda headers": found.headers}

    def serves(self, toolchain: Mapping[str, str]) -> bool:
        """Whether the driver here, if there is one, runs what another NVRTC made: not one of a later CUDA."""
        major = gpu.supported_major()
        return major is None or int(toolchain["nvrtc"].partition(".")[0]) <= major

    def load(self, payload: bytes) -> Cubin:
        return Cubin.unpacked(payload)

    def make(self, directory: Path) -> Product:
        spec = self.named
        compiler = nvrtc.find_nvrtc(spec.label)
        options = _options(spec, self._roots, compiler)
        (directory / "variant.cu").write_text(self._generated, encoding="utf-8")
        command = f"nvrtc {' '.join(options)} variant.cu  # {spec.kernel}"
        headers = _headers(spec, self._roots)
        try:
            image, (symbol, signature) = nvrtc.compile_kernel(
                compiler, self._generated, (spec.kernel, _signature_of(spec.kernel)), options, headers
            )
        except nvrtc.RejectedSourceError as error:
            if "invalid value for --gpu-architecture" in str(error):  # one text for all variants, to be said once
                raise nvrtc.unknown_target(compiler, spec.target.name, f"the kernels of {spec.family}") from error
            raise CompileError(
                build=spec.label,
                first_error=_first_error(spec, str(error)),
                command=command,
                log=str(error),
                build_directory=directory,
            ) from error
        payload = directory / self.payload
        payload.write_bytes(Cubin(image, symbol, signature, compiler.version).packed())
        return Product(payload, command, {})


def _signature_of(kernel: str) -> str:
    """The variable whose symbol is the type of a kernel, with the fields of its parameters."""
    return f"&sgl::signature<sgl::described<decltype(&{kernel})>>"


def _source(file: str) -> str:
    return f'{_INCLUDE_DEVICE}#include "{file}"\n'


_MOST_PRECOMPILED = 4  # files of a family, at 0.1 s each; those of the rest are made with their first kernels


def precompile(spec_of: Callable[[str], BuildSpec], csrc: Path) -> None:
    """Load NVRTC and precompile the device files of a family with what they include: kernels then take half as long.

    Args:
        spec_of: the build of a kernel in a device file.
    """
    compiler = nvrtc.find_nvrtc(csrc.parent.name)
    for file in _device_files(csrc)[:_MOST_PRECOMPILED]:
        spec = spec_of(file)
        roots = include_roots(spec)
        with contextlib.suppress(nvrtc.RejectedSourceError):
            nvrtc.precompile_headers(compiler, _source(file), _options(spec, roots, compiler), _headers(spec, roots))


def _headers(spec: BuildSpec, roots: Sequence[includes.Root]) -> str:
    """Identifies the content of all that a device file and its neighbours include: they share precompiled headers.

    A file that lies elsewhere, below another directory of csrc, has its own.
    """
    device_files = sorted({*_device_files(spec.csrc), *spec.cuda_files})
    text = "".join((_INCLUDE_DEVICE, *(f'#include "{name}"\n' for name in device_files)))
    return keys.key(includes.scan(device_files, roots, text).files)


def _device_files(csrc: Path) -> list[str]:
    """The readable device files, functors of row operations among them; an editor's lock is a link to nowhere."""
    readable = [path for path in csrc.iterdir() if path.is_file() and os.access(path, os.R_OK)]
    return sorted(path.name for path in readable if path.suffix == ".cuh" or _is_functor(path))


@functools.cache  # a file that becomes one later has precompiled headers of its own
def _is_functor(path: Path) -> bool:
    return path.suffix == ".h" and _ROW_OPERATION.search(path.read_bytes()) is not None


def _options(spec: BuildSpec, roots: Sequence[includes.Root], compiler: nvrtc.Nvrtc) -> list[str]:
    return [*_flags(spec.target), *(f"-I{root.directory}" for root in roots), f"-I{compiler.include}"]


def _flags(target: Target) -> tuple[str, ...]:
    assert target.cuda_arch is not None
    major, minor = target.cuda_arch
    return (
        f"--gpu-architecture={target.name}",
        "-std=c++20",
        "-default-device",  # constexpr functions that host and device share need no annotation
        f"-DSGL_CUDA_ARCH={major * 100 + minor * 10}",
    )


def _first_error(spec: BuildSpec, log: str) -> str:
    """The line of the log that names the error, in the terms of the author of a device file."""
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
