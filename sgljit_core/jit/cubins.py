"""One device kernel, made by NVRTC: its request, its sources, and what NVRTC's errors mean to an author."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from sgljit_core.builds.request import Request
from sgljit_core.cache import keys
from sgljit_core.compilers import includes, nvrtc
from sgljit_core.errors import CompileError, ToolchainNotFoundError
from sgljit_core.load import gpu
from sgljit_core.load.cubin import Cubin
from sgljit_core.specs.build import BuildSpec, Product

from .modules import include_roots

_ROW_OPERATION = re.compile(rb"<sgl_kernel/row_(map|reduce|program)\.h>")
_BOUNDS = r"(?:__launch_bounds__\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\s*)?(?://[^\n]*\s*)?"
_GLOBAL = re.compile(
    rf"(?P<template>template\s*<[^;{{}}]*?>\s*)?__global__\s+{_BOUNDS}\w[\w:]*\s+{_BOUNDS}(?P<name>\w+)\s*\("
)


class KernelRequest(Request[Cubin]):
    """A request for a device kernel as machine code."""

    payload = "kernel.cubin"
    load = staticmethod(Cubin.unpacked)

    def __init__(self, spec: BuildSpec, root: Path) -> None:
        self._roots = include_roots(spec)
        # The names of element types come first, as a dtype among the template arguments is one of them. Types of fp8,
        # which take a tenth of the time, are for kernels that name one.
        types = "fp8" if "fp8" in spec.kernel.lower() else "device"
        self._generated = f'#include <sgl_kernel/{types}.cuh>\n#include "{spec.cuda_files[0]}"\n'
        self._flags = (
            f"--gpu-architecture={spec.target.name}",
            "-std=c++20",
            "-default-device",  # constexpr functions that host and device share need no annotation
            spec.target.macro,
        )
        scan = includes.scan(spec.cuda_files, self._roots, self._generated)
        source = keys.source_ingredients(spec, {"variant.cu": self._generated}, scan, {"nvrtc": self._flags})
        super().__init__(spec, root, source, scan)

    def find_tools(self, needed_for: str) -> Mapping[str, str]:
        self._compiler = found = nvrtc.find_nvrtc(needed_for)
        return {"nvrtc": found.version, "cuda headers": found.headers}

    def serves(self, toolchain: Mapping[str, str]) -> bool:
        """Whether the NVRTC that made a kernel is of no later CUDA than the driver; True without a driver."""
        major = gpu.supported_major()
        return major is None or int(toolchain["nvrtc"].partition(".")[0]) <= major

    def make(self, directory: Path) -> Product:
        spec = self.named
        compiler = self._compiler
        (directory / "variant.cu").write_text(self._generated, encoding="utf-8")
        command = f"nvrtc {' '.join(self._options(compiler))} variant.cu  # {spec.kernel}"
        # The symbol of the variable is the type of the kernel, with the fields of its parameters.
        expressions = (spec.kernel, f"&sgl::signature<sgl::described<decltype(&{spec.kernel})>>")
        try:
            image, (symbol, signature), log = self._compile(compiler, expressions)
        except nvrtc.RejectedSourceError as error:
            log = str(error)
            if "invalid value for --gpu-architecture" in log:  # one text for all variants, to be said once
                raise ToolchainNotFoundError(
                    f"an NVRTC for {spec.target.name}",
                    needed_for=f"the kernels of {spec.family}",
                    searched=[f"{compiler.library}, NVRTC {compiler.version}"],
                    remedy=f"Name an architecture that it knows, or install a later one. {nvrtc.REMEDY}",
                ) from error
            first = _first_error(spec, log)
            raise CompileError(
                build=spec.label, first_error=first, command=command, log=log, build_directory=directory
            ) from error
        payload = directory / self.payload
        payload.write_bytes(Cubin(image, symbol, signature, compiler.version).packed())
        return Product(payload, command, {}, nvrtc.resources(log, symbol))

    def precompile(self) -> None:
        """Load NVRTC and precompile what the device file includes, which spares each of its kernels some time."""
        with contextlib.suppress(nvrtc.RejectedSourceError):
            self._compile(nvrtc.find_nvrtc(self.build.family), ())

    def _options(self, compiler: nvrtc.Nvrtc) -> list[str]:
        roots = (f"-I{root.directory}" for root in self._roots)
        return [*self._flags, "-Xptxas=-v", *roots, f"-I{compiler.include}"]  # -v changes the log alone, and no key

    def _compile(self, compiler: nvrtc.Nvrtc, expressions: Sequence[str]) -> tuple[bytes, list[str], str]:
        headers = keys.key(self.scan.files)
        return nvrtc.compile_kernel(compiler, self._generated, expressions, self._options(compiler), headers)


def device_files(csrc: Path) -> list[str]:
    """The readable device files, functors of row operations among them; an editor's lock is a link to nowhere."""
    readable = [path for path in csrc.iterdir() if path.is_file() and os.access(path, os.R_OK)]
    return sorted(
        path.name
        for path in readable
        if path.suffix == ".cuh" or (path.suffix == ".h" and _ROW_OPERATION.search(path.read_bytes()))
    )


def _first_error(spec: BuildSpec, log: str) -> str:
    """The line of the log that names the error, in the terms of the author of a device file."""
    missing = re.search(r'^(.+?)\(\d+\): .*(?:cannot|could not) open source file "([^"]+)"', log, re.MULTILINE)
    if missing is not None:
        near = sorted(path.name for path in spec.csrc.glob("*.*h"))
        return (
            f"{missing[1]} includes <{missing[2]}>, which is for the host, or not there. A device file includes CUDA's "
            f"device headers, the device headers of sgl_kernel, and files of its own; csrc holds {', '.join(near)}"
        )
    first = next((line.strip() for line in log.splitlines() if "error" in line), log.partition("\n")[0])
    if first.startswith("__nv_name_map"):
        first = f"{spec.kernel}: {first.partition('error: ')[2]}. {_names_in(spec)}"
    if "fp8_e" in log and "complete" in log:  # of a type that is only declared
        first = f"{first}. Device code that names a type of fp8 includes <sgl_kernel/fp8.cuh>"
    return first


def _names_in(spec: BuildSpec) -> str:
    """The kernels in a device file, as they are declared there."""
    text = (spec.csrc / spec.cuda_files[0]).read_text(errors="replace")
    found = []
    for match in _GLOBAL.finditer(text):
        declaration = " ".join([*(match["template"] or "").split(), match["name"]])
        found.append(f"line {text.count(chr(10), 0, match.start()) + 1}: {declaration}")
    names = "; ".join(found) if found else "no __global__ function of its own"
    return f"{spec.cuda_files[0]} has {names}. A kernel is named with its namespace"
