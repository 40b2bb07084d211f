"""Which sources and flags do the compilers get? Both go into the key, so a warm start needs them too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sgljit_core.specs.build import BuildSpec

from .includes import Root, Scan, scan

_COMMON = ("-std=c++20", "-O3")
# Without -fno-gnu-unique all libraries of the process share the statics of templates and inline functions, so that a
# second module's one-time initialiser is skipped. With errno a loop that takes a square root has no vectors.
_HOST = ("-fPIC", "-fvisibility=hidden", "-fno-gnu-unique", "-fno-math-errno")
# The units of the core's own functions (sgl_kernel/impl/separate.h), and the macro that announces them to the others.
_CORE_UNITS = ("messages.cpp", "kernels.cpp", "programs.cpp")
_SEPARATE = ("-DSGL_SEPARATE",)
_ROCM = ("-DUSE_ROCM", "-D__HIP_PLATFORM_AMD__")
# The header before the files of a port, so that they find the names of SGLang's headers.
_PORT_HEADER = "sgl_kernel/compat/sglang.h"
PORT_TEXT = f"#include <{_PORT_HEADER}>\n"
_TVM_CPP = "SGL_TVM_FFI_CPP"


class Recipe(NamedTuple):
    """The sources and flags of a build."""

    scan: Scan  # the files that decide it
    generated: dict[str, str]  # sources by file name
    steps: dict[str, tuple[str, ...]]  # the flags of each step as they go into the key
    roots: Sequence[Root]  # the include directories, in their order


def recipe(spec: BuildSpec, roots: Sequence[Root]) -> Recipe:
    """Generate the sources of a build, and scan them and its files. Raises as ``scan`` does."""
    generated, steps = generated_sources(spec), flags(spec, roots)
    found = scan((*spec.cpp_files, *spec.cuda_files), roots, "".join(generated.values()), PORT_TEXT)
    if found.is_port:
        generated = generated_sources(spec, found)
        if not spec.header_only:  # the files are units of their own: each includes the port's header first
            steps["unit"] = (*([f"-D{_TVM_CPP}=1"] if found.uses_tvm_cpp else []), "-include", _PORT_HEADER)
    reached = [path.rpartition("/sgl_kernel/")[2] for path in found.stamps]  # in their order: the author's files first
    if "core_programs.cpp" in generated and reached.index("src/programs.cpp") < reached.index("row_program.h"):
        del generated["core_programs.cpp"]
    return Recipe(found, generated, steps, roots)


def generated_sources(spec: BuildSpec, found: Scan | None = None) -> dict[str, str]:
    """The generated sources by file name: they include the author's files and export the wrappers; and the core's.

    Without a scan nothing is known of the author's files, and they count as no port.
    """
    sources = {}
    if spec.header_only:
        before = ""
        if found is not None and found.is_port:
            before = f"{f'#define {_TVM_CPP} 1' if found.uses_tvm_cpp else ''}\n{PORT_TEXT}".lstrip()
        # CUDA first, as it takes longest.
        sources["generated.cu"] = _generate(
            "generated.cu", before, spec.cuda_files, ("cuda_sources", spec.cuda_sources), spec.cuda_wrappers
        )
        sources["generated.cpp"] = _generate(
            "generated.cpp", before, spec.cpp_files, ("cpp_sources", spec.cpp_sources), spec.cpp_wrappers
        )
    if _is_separate(spec):
        sources |= {f"core_{unit}": f"#include <sgl_kernel/src/{unit}>\n" for unit in _CORE_UNITS}
    return {name: text for name, text in sources.items() if text}


def _is_separate(spec: BuildSpec) -> bool:
    """Whether the core's own functions are compiled beside the module's files.

    They take as long as a host part, or a quarter of nvcc's time. A small C++ module compiles faster with few inlined.
    """
    return spec.host_part or spec.target.cuda_arch is not None


def _generate(
    name: str, before: str, files: Sequence[str], inline: tuple[str, Sequence[str]], wrappers: Sequence[tuple[str, str]]
) -> str:
    keyword, texts = inline
    if not files and not texts:
        return ""
    lines = [*before.splitlines(), *(f'#include "{file}"' for file in files)]
    for index, text in enumerate(texts):
        # Messages count the lines of the caller's text.
        lines += [f'#line 1 "{keyword}[{index}]"', *text.split("\n")]
    if texts:
        lines += [f'#line {len(lines) + 2} "{name}"']
    # The export header comes last, so that it can see which of tvm-ffi's own headers the files include.
    lines += ["#include <sgl_kernel/export.h>"]
    lines += [f"SGL_EXPORT({export}, ({symbol}))" for export, symbol in wrappers]
    return "\n".join(lines) + "\n"


def flags(spec: BuildSpec, roots: Sequence[Root]) -> dict[str, tuple[str, ...]]:
    """The flags of each step as they go into the key: with the labels of ``roots`` for their directories."""
    includes = tuple(f"-I{root.label}" for root in roots)
    steps = {"cxx": (*cxx_flags(spec), *includes), "link": spec.ldflags}
    if spec.target.cuda_arch:
        steps["nvcc"] = (*nvcc_flags(spec), *includes)
    if spec.target.is_rocm:
        steps["hipcc"] = (*hipcc_flags(spec), *includes)
    for root in roots:
        labelled = (f"{root.directory}/", f"{root.label}/")
        steps = {step: tuple(flag.replace(*labelled) for flag in values) for step, values in steps.items()}
    return steps


def cxx_flags(spec: BuildSpec) -> tuple[str, ...]:
    """The host compiler's flags, without include directories."""
    # In a module without C++ files nothing has ever tried these flags: the core's units do not get them.
    own = spec.cflags if spec.cpp_files or spec.cpp_sources else ()
    own = (*(_ROCM if spec.target.is_rocm else ()), *own)
    return (*_COMMON, *_HOST, *(_SEPARATE if _is_separate(spec) else ()), *own)


def nvcc_flags(spec: BuildSpec) -> tuple[str, ...]:
    """The flags of nvcc, without include directories."""
    return (
        *_COMMON,
        "--expt-relaxed-constexpr",
        f"-gencode=arch={spec.target.name.replace('sm_', 'compute_')},code={spec.target.name}",
        spec.target.macro,
        *(f"-Xcompiler={flag}" for flag in _HOST),
        *_SEPARATE,
        *spec.cuda_cflags,
    )


def hipcc_flags(spec: BuildSpec) -> tuple[str, ...]:
    """The flags of hipcc, without include directories. Like nvcc it is to include its runtime's header."""
    host = (flag for flag in _HOST if flag != "-fno-gnu-unique")  # it is clang, see native
    own = (f"--offload-arch={spec.target.name}", "-include", "hip/hip_runtime.h")
    return (*_COMMON, *host, *own, *_ROCM, *spec.cuda_cflags)
