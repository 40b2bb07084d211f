"""Instant variants: a host part that asks for its device kernels, and NVRTC that makes them."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from kit import mostly_slow

import sgljit_tools.cache
from sgljit_core import (
    CppEnum,
    KernelFamily,
    errors,
    freeze,
    make_cpp_args,
    override_cuda_arch,
    parallel_compile,
    paths,
)
from sgljit_core.cache.manifest import Manifest
from sgljit_core.compilers import arch, nvrtc
from sgljit_core.jit import kernels
from sgljit_core.jit.cubins import KernelRequest
from sgljit_core.load import gpu
from sgljit_core.load.cubin import Cubin
from sgljit_core.specs.build import BuildSpec, Target
from sgljit_tools.testing import build_variant

DEVICE = """\
#pragma once
#include <sgl_kernel/type.cuh>
#include "params.h"
namespace scaling {
template <int kFactor, bool kNegate, typename T>
__global__ void scale(const __grid_constant__ Params params) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= params.length) return;
  auto* data = static_cast<T*>(params.data);
  data[i] = static_cast<T>(static_cast<float>(data[i]) * kFactor * (kNegate ? -1 : 1));
}
template <Mode kMode>
__global__ __launch_bounds__(64) void fill(int* data, int length, int value) {
  extern __shared__ int smem[];
  __shared__ int factor; factor = kMode == Mode::kTwice ? 2 : 1; smem[threadIdx.x] = value;
  __syncthreads();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < length) data[i] = smem[threadIdx.x] * factor;
}
__global__ void plain(int* data) { *data = 7; }
__global__ void multiprocessor(int* data) { asm("mov.u32 %0, %%smid;" : "=r"(data[blockIdx.x])); }
}  // namespace scaling
"""

PARAMS = """\
#pragma once
#include <sgl_kernel/signature.h>
namespace scaling {
struct Params {
  void* data;
  int length;
  SGL_FIELDS(data, length)
};
enum class Mode { kOnce, kTwice };
}
"""

HOST = """\
#include <sgl_kernel/deferred.h>
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/variant.h>
#include "params.h"
namespace {
host::Kernel<scaling::Params> scale_kernel{"scaling.cuh", "scaling::scale"};
host::Kernel<int*, int, int> fill_kernel{"scaling.cuh", "scaling::fill"};
host::Kernel<int> plain_kernel{"scaling.cuh", "scaling::plain"};
host::Kernel<int*> multiprocessor_kernel{"scaling.cuh", "scaling::multiprocessor"};
host::Kernel<> unknown_kernel{"scaling.cuh", "scaling::nothing"};
host::Deferred<void(const scaling::Params&, int)> scale_on_cpu{"scaling_cpu.cpp", "scale_on_cpu"};

auto match(host::TensorView x) {
  auto N = host::SymbolicSize{"length"};
  host::TensorMatcher({N}).with_device<kDLCUDA, kDLCPU>().verify(x);
  return scaling::Params{x.data_ptr(), static_cast<int>(N.unwrap())};
}
void scale3(host::TensorView x, bool negate) {
  const auto params = match(x);
  if (x.device().device_type == kDLCPU) return scale_on_cpu(params, negate ? -3 : 3);
  host::LaunchKernel(host::div_ceil(params.length, 64), 64, x.device())
      .enable_pdl(host::runtime::has_pdl(x.device().device_id))(
          scale_kernel.get(3, negate, x.dtype()), params);
}
void fill(host::TensorView x, int value, bool twice, std::int64_t smem) {
  const auto params = match(x);
  const auto kernel = fill_kernel.get(twice ? scaling::Mode::kTwice : scaling::Mode::kOnce);
  host::LaunchKernel(host::div_ceil(params.length, 64), 64, x.device(), smem)(
      kernel, static_cast<int*>(params.data), params.length, value);
}
void wrong_type(host::TensorView x) { host::LaunchKernel(1, 1, x.device())(plain_kernel.get(), 7); }
void unknown(host::TensorView x) { host::LaunchKernel(1, 1, x.device())(unknown_kernel.get(1)); }
void multiprocessor(host::TensorView x) {
  const auto params = match(x);
  host::LaunchKernel(params.length, 32, x.device())(multiprocessor_kernel.get(), static_cast<int*>(params.data));
}
std::int64_t occupancy(host::TensorView x, std::int64_t smem) {
  return host::runtime::get_blocks_per_sm(
      fill_kernel.get(scaling::Mode::kOnce), 64, smem, x.device().device_id);
}
std::int64_t room(host::TensorView x) {
  return host::runtime::get_available_dynamic_smem_per_block(
      fill_kernel.get(scaling::Mode::kOnce), 1, 64, x.device().device_id);
}
}
"""

CPU = """\
#include <sgl_kernel/deferred.h>
#include "params.h"
void scale_on_cpu(const scaling::Params& params, int factor) {
  for (int i = 0; i < params.length; ++i) static_cast<float*>(params.data)[i] *= factor;
}
"""

EXPORTS = ["scale3", "fill", "wrong_type", "unknown", "multiprocessor", "occupancy", "room"]


def make_family(site: Path, name: str, **replaced: str) -> KernelFamily:
    """A family on disk, importable."""
    csrc = site / name / "csrc"
    csrc.mkdir(parents=True)
    (site / name / "__init__.py").touch()
    texts = {"scaling.cuh": DEVICE, "params.h": PARAMS, "host.cpp": HOST, "scaling_cpu.cpp": CPU, **replaced}
    for file, text in texts.items():
        (csrc / file).write_text(text)
    return KernelFamily(name, name)


def load(family: KernelFamily, **options):
    exports = [(name, name) for name in EXPORTS]
    return family.load_host("host", cpp_files=["host.cpp"], cpp_wrappers=exports, **options)


@pytest.fixture
def family(tmp_path, monkeypatch, request):
    monkeypatch.syspath_prepend(tmp_path)
    return make_family(tmp_path, f"scaling_{abs(hash(request.node.name)) % 10**8}")


@pytest.fixture(scope="module")
def scaling(tmp_path_factory):
    """A family for tests that only call it: its host part is compiled once in a run."""
    site = tmp_path_factory.mktemp("scaling")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        yield make_family(site, "scaling_family")


def sources_of(family: KernelFamily) -> kernels.Sources:
    return kernels.Sources(family.name, family.csrc, paths.cache_root())


def cubin_of(family: KernelFamily, file: str, expression: str) -> Cubin:
    return kernels.build_kernel(sources_of(family), file, expression)


def build(family: KernelFamily, *kernel) -> Cubin:
    with override_cuda_arch(9, 0):
        build_variant(family, "scaling.cuh", *kernel)


def test_a_deferred_function_runs_on_the_cpu_with_no_cuda_at_all(scaling):
    x = torch.arange(4.0)
    load(scaling).scale3(x, True)
    assert x.tolist() == [0, -3, -6, -9]


def test_a_deferred_function_of_another_type_is_refused_with_both_types(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    family = make_family(tmp_path, "mistyped", **{"scaling_cpu.cpp": CPU.replace("int factor", "double factor")})
    with pytest.raises(errors.SignatureError) as caught:
        load(family).scale3(torch.ones(1), False)
    assert str(caught.value) == (
        "the deferred function scale_on_cpu of mistyped/scaling_cpu.cpp does not take what the host part passes: "
        "it has parameter 2: double, and the host part has parameter 2: int. "
        "Declare the parameters once, in a header that both include; after an edit of that header, start a new process"
    )


def test_a_result_of_another_layout_is_refused(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    result = "#include <sgl_kernel/deferred.h>\nstruct Result { long values[%d]; SGL_FIELDS(values) };\n"
    host = 'host::Deferred<Result()> compute{"result.cpp", "compute"};\nlong first() { return compute().values[0]; }\n'
    files = {"host.cpp": result % 2 + host, "result.cpp": result % 3 + "Result compute() { return {}; }\n"}
    family = make_family(tmp_path, "larger_result", **files)
    module = family.load_host("host", cpp_files=["host.cpp"], cpp_wrappers=[("first", "first")])
    with pytest.raises(TypeError, match=r"has the result\.values \(byte 0 of Result\): long \[3\], .*\[2\]\."):
        module.first()


SEAM_PARAMS = """\
#pragma once
#include <sgl_kernel/signature.h>
enum class Mode : int { kOne };
struct Heads { void* data; const float* weight; SGL_FIELDS(data, weight) };
template <int N>
struct Params {
  Heads heads[N];
  long long length;
  int rows, columns;
  float eps;
  Mode mode;
  char first, second;
  SGL_FIELDS(heads, length, rows, columns, eps, mode, first, second)
};
"""
SEAM_DEVICE = """\
#include "seam.h"
template <int kSeed, int N, typename T>
__global__ void seam(const __grid_constant__ Params<2 * N> params, T* out) { *out = T(params.eps + kSeed); }
"""
SEAM_HOST = """\
#include <sgl_kernel/deferred.h>
#include <sgl_kernel/variant.h>
#include "seam.h"
host::Kernel<Params<2>, __half*> on_gpu{"seam.cuh", "seam"};
host::Deferred<void(const Params<2>&)> on_cpu{"seam_cpu.cpp", "seam"};
void load(int seed) { (void)on_gpu.get(seed, 1, DLDataType{kDLFloat, 16, 1}).on(0); }
void call() { on_cpu({}); }
"""
SEAM_CPU = '#include <sgl_kernel/deferred.h>\n#include "seam.h"\nvoid seam(const Params<2>&) {}\n'


@pytest.fixture(scope="module")
def seam(tmp_path_factory):
    """A host part, with the directory of its sources."""
    site = tmp_path_factory.mktemp("seam")
    files = {"seam.h": SEAM_PARAMS, "seam.cuh": SEAM_DEVICE, "host.cpp": SEAM_HOST, "seam_cpu.cpp": SEAM_CPU}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        family = make_family(site, "seam_family", **files)
        wrappers = [("load", "load"), ("call", "call")]
        yield family.load_host("host", cpp_files=["host.cpp"], cpp_wrappers=wrappers), family.csrc


@pytest.fixture
def without_a_gpu(monkeypatch):
    """Kernels are made and checked, and not loaded."""
    monkeypatch.setattr(arch, "device_target", lambda device_id: Target("sm_90a", (9, 0)))
    monkeypatch.setattr(gpu, "load_kernel", lambda *arguments: 1)


EDITS = {  # an edit of the header, and where the two versions first differ: that of the kernel, that of the host part
    "a float for an int": ("int rows, columns;", "int rows; float columns;", r"\.columns \(byte 44 .*: float, .*: int"),
    "an int for a long long": ("long long length", "int length", r"\.length \(byte 32 .*: int, .*: long long\."),
    "fields of one type in another order": ("int rows, columns", "int columns, rows", r"\.rows \(byte 44.*\(byte 40"),
    "pointers in another order": (
        "void* data; const float* weight;",
        "const float* weight; void* data;",
        r"\.heads\.data \(byte 8.*\.heads\.data \(byte 0",
    ),
    "a pointer to another type": ("const float* weight", "const int* weight", r"heads\.weight .*int const\*, .*float"),
    "an array of another size": ("heads[N]", "heads[N + 1]", r"\.heads .*Heads \(.*\) \[3\], .*\[2\]\."),
    "a field more": ("char first,", "char more, first,", r"\.first \(byte 57.*\.first \(byte 56"),
    "an enum of another type": (": int {", ": unsigned {", r"\.mode .*Mode of unsigned int, .*Mode of int\."),
    "another alignment": ("struct Heads {", "struct alignas(32) Heads {", r"Heads \(32 bytes.*Heads \(16 bytes"),
    "a field that moves within the padding": (
        "first, second;",
        "first; alignas(2) char second;",
        r"\.second \(byte 58.*\.second \(byte 57",
    ),
}


@pytest.mark.parametrize("edit", mostly_slow(*EDITS, quick=3))
def test_a_kernel_from_another_version_of_its_parameters_is_refused_with_the_field(seam, without_a_gpu, edit):
    module, csrc = seam
    seed = list(EDITS).index(edit)
    old, new, text = EDITS[edit]
    (csrc / "seam.h").write_text(edited(old, new))
    try:
        with pytest.raises(errors.SignatureError, match=text) as caught:
            module.load(seed)
        assert f"the kernel seam<{seed}, 1, fp16_t> of seam_family/seam.cuh" in str(caught.value)
        with pytest.raises(errors.SignatureError, match=text):
            module.call()
    finally:
        (csrc / "seam.h").write_text(SEAM_PARAMS)
    module.load(seed)


def edited(old: str, new: str) -> str:
    assert old in SEAM_PARAMS
    text = SEAM_PARAMS.replace(old, new)
    return text.replace("second)", "second, more)") if "more" in new else text


def test_an_error_of_the_core_passes_through_the_host_part_with_its_class_and_data(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    family = make_family(tmp_path, "failing", **{"scaling_cpu.cpp": CPU.replace("*= factor", "*= nothing")})
    with pytest.raises(errors.CompileError, match="nothing") as caught:
        load(family).scale3(torch.ones(1), False)
    assert caught.value.build_directory.is_dir()


def test_a_match_failure_of_the_host_part_has_the_whole_text(scaling):
    with pytest.raises(
        errors.TensorMatchError, match=r"at scaling_family/host.cpp:\d+\n- Root cause: Dimension mismatch"
    ):
        load(scaling).scale3(torch.ones(2, 2), False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA driver answers")
def test_without_a_driver_a_launch_says_so(family):
    with pytest.raises(RuntimeError, match=r"no CUDA driver on this machine|kernels run on CUDA devices"):
        load(family).fill(torch.ones(1, dtype=torch.int32), 1, False, 0)


@pytest.mark.parametrize("arch", [(8, 0), (9, 0), (10, 0)])
def test_a_kernel_is_made_for_any_target_without_a_gpu(family, arch):
    with override_cuda_arch(*arch) as target:
        build_variant(family, "scaling.cuh", "scaling::scale", 3, False, torch.bfloat16)
        cubin = cubin_of(family, "scaling.cuh", "scaling::plain")
    assert cubin.image.startswith(b"\x7fELF")
    assert "plain" in cubin.symbol
    assert target.name.encode().removeprefix(b"sm_") in cubin.image
    assert b"is_same" not in cubin.image  # NVRTC keeps each constant that a header names


def test_a_manifest_says_what_its_kernel_takes(family):
    build(family, "scaling::plain")
    (entry,) = (entry for entry in sgljit_tools.cache.entries() if entry.manifest.family == family.name)
    assert 0 < entry.manifest.resources.pop("registers") <= 255
    assert entry.manifest.resources == {"shared_bytes": 0, "spilled_bytes": 0, "access_bytes": 4}


def test_what_a_kernel_takes_is_read_from_the_log_of_ptxas():
    log = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 25 registers, used 1 barriers, 400 bytes smem
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas         .     392 bytes stack frame, 460 bytes spill stores, 528 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 392 bytes cumulative stack size
"""
    first, second = (nvrtc.resources(log, name) for name in ("first", "second"))
    assert first == {"registers": 25, "shared_bytes": 400, "spilled_bytes": 0, "access_bytes": 0}
    assert second == {"registers": 32, "shared_bytes": 0, "spilled_bytes": 460, "access_bytes": 0}
    assert nvrtc.resources(log, "third") == nvrtc.resources("", "first") == {}


@pytest.mark.parametrize(
    ("ptx", "bytes_"),
    [
        ("ld.global.nc.L1::no_allocate.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];", 16),
        ("ld.global.v4.b32 {}, [%rd1]; st.global.b16 [%rd2], %rs1;", 2),
        ("ld.relaxed.gpu.global.L2::128B.v2.f64 {}, [%rd1];", 16),
        ("ld.param.u8 %rs1, [p]; ld.volatile.shared.u8 %rs1, [s]; st.shared::cta.v4.f32 [s], {};", 0),
        ("st.v4.b32 [%rd1], {}; ld.u8 %rs1, [%rd1];", 1),  # which memory it is shows when it runs
        ("red.global.add.noftz.bf16x2 [%rd1], %r1;", 2),
        ("atom.global.cas.b64 %rd1, [%rd2], %rd3, %rd4;", 8),
    ],
)
def test_the_narrowest_access_to_global_memory_is_read_from_ptx(ptx, bytes_):
    log = f"Compiling entry function 'name' for 'sm_90a'\nUsed 8 registers\n{ptx}\n"
    assert nvrtc.resources(log, "name")["access_bytes"] == bytes_


def test_an_artifact_keeps_image_and_symbol_and_stays_an_elf_file():
    cubin = Cubin(b"\x7fELF...", "_Z1kv", "_ZN3sgl9signatureIFvvEEE", "13.0")
    assert Cubin.unpacked(cubin.packed(), "add") == cubin
    assert cubin.packed().startswith(cubin.image)
    for broken in (b"", b"\x7fELF", b"not an elf file at all", cubin.packed()[:-1] + b"\xff"):
        with pytest.raises(errors.ArtifactLoadError):
            Cubin.unpacked(broken, "add")


def test_an_unknown_kernel_names_those_that_there_are(family):
    with pytest.raises(errors.CompileError) as caught:
        build(family, "scaling::scael", 3, False, torch.float32)
    first = str(caught.value).splitlines()[0]
    assert "scaling::scael<3, false, fp32_t>" in first
    assert "scaling.cuh has line 5: template <int kFactor, bool kNegate, typename T> scale; " in first
    assert first.endswith("line 20: plain; line 21: multiprocessor. A kernel is named with its namespace")


def test_a_package_in_a_zip_is_told_that_it_must_be_unpacked(family):
    shutil.rmtree(family.csrc.parent)
    family.csrc.parent.write_bytes(b"PK")
    with pytest.raises(errors.SourceNotFoundError) as caught:
        load(family)
    assert f"{family.csrc.parent} is a file, and compilers read directories: unpack it" in str(caught.value)
    assert "package data" not in str(caught.value)


def test_a_package_without_its_sources_is_told_how_to_carry_them(family):
    shutil.rmtree(family.csrc)
    with pytest.raises(errors.SourceNotFoundError) as caught:
        load(family)
    assert str(caught.value).endswith(
        f"directory {family.csrc} does not exist; the installed package does not carry it: name it as package data "
        f"(setuptools: package-data)"
    )


def test_an_unknown_device_file_names_those_that_there_are(family):
    with override_cuda_arch(9, 0), pytest.raises(errors.SourceNotFoundError) as caught:
        build_variant(family, "scalign.cuh", "scaling::scale", 3, False, torch.float32)
    assert "source 'scalign.cuh' not found in" in str(caught.value)
    assert str(caught.value).endswith("that directory holds: host.cpp, params.h, scaling.cuh, scaling_cpu.cpp")


def test_a_target_that_nvrtc_does_not_know_is_told_once(family):
    def builder(factor):
        return lambda: build_variant(family, "scaling.cuh", "scaling::scale", factor, False, torch.float32)

    with override_cuda_arch(9, 9), pytest.raises(errors.ParallelCompileError) as caught:
        parallel_compile([builder(factor) for factor in range(3)])
    heading, line, _, *first = str(caught.value).splitlines()
    assert heading == "3 of 3 builds failed:"
    assert line.startswith("  - ToolchainNotFoundError: an NVRTC for sm_99a")
    assert line.endswith(f"needed to compile the kernels of {family.name}. (3 times)")
    assert re.search(r"libnvrtc.*, NVRTC \d+\.\d+", "\n".join(first))
    assert 'pip install "sgljit-core[nvrtc]"' in "\n".join(first)


def test_wrong_template_arguments_are_nvrtcs_error_with_the_expression(family):
    with pytest.raises(errors.CompileError) as caught:
        build(family, "scaling::scale", 3)
    first = str(caught.value).splitlines()[0]
    assert "scaling::scale<3>" in first
    assert "template <int kFactor, bool kNegate, typename T> scale" in first


def test_an_error_in_the_device_file_points_at_its_line(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    family = make_family(tmp_path, "erring", **{"scaling.cuh": DEVICE.replace("*data = 7", "*data = seven")})
    with pytest.raises(
        errors.CompileError, match=r'scaling.cuh\(20\): error: identifier "seven" is undefined'
    ) as caught:
        build(family, "scaling::plain")
    assert "variant.cu" in caught.value.command
    assert (caught.value.build_directory / "variant.cu").is_file()


@pytest.mark.parametrize(
    ("include", "text"),
    [
        ("<vector>", r"scaling\.cuh includes <vector>, which is for the host, or not there"),
        ("<sgl_kernel/tensor.h>", r"/sgl_kernel/.* includes <\w+>, which is for the host"),
        ('"parms.h"', r"scaling\.cuh includes <parms\.h>, .* or not there\. .*; csrc holds params\.h, scaling\.cuh"),
        ("<sgl_kernel/wrap.cuh>", r"includes <sgl_kernel/wrap\.cuh>, which is for the host, or not there"),
    ],
)
def test_a_header_that_no_device_file_can_include_is_refused_by_name(tmp_path, monkeypatch, include, text):
    monkeypatch.syspath_prepend(tmp_path)
    name = f"including_{abs(hash(include)) % 10**8}"
    family = make_family(tmp_path, name, **{"scaling.cuh": f"#include {include}\n" + DEVICE})
    with pytest.raises(errors.CompileError, match=text):
        build(family, "scaling::plain")


def test_a_variant_of_fp8_needs_no_include(family):
    build(family, "scaling::scale", 3, False, torch.float8_e4m3fn)


def test_a_device_file_that_names_fp8_is_told_which_header_it_lacks(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    device = DEVICE.replace("int* data) { *data = 7; }", "fp8_e4m3_t* data) { data[1] = fp8_e4m3_t(7.0f); }")
    family = make_family(tmp_path, "of_fp8", **{"scaling.cuh": device})
    with pytest.raises(errors.CompileError) as caught:
        build(family, "scaling::plain")
    first = str(caught.value).splitlines()[0]
    assert "scaling.cuh(20): error: " in first
    assert first.endswith(". Device code that names a type of fp8 includes <sgl_kernel/fp8.cuh>")
    family = make_family(tmp_path, "with_fp8", **{"scaling.cuh": f"#include <sgl_kernel/fp8.cuh>\n{device}"})
    build(family, "scaling::plain")


def test_a_device_file_may_use_textures_and_types_of_cudas_runtime(tmp_path, monkeypatch):
    """NVRTC is asked first to compile without both, which takes less time."""
    monkeypatch.syspath_prepend(tmp_path)
    texture = """
template <int kAt> __global__ void look(unsigned long long texture, float* data) {
  *data = tex2D<float>(cudaTextureObject_t{texture}, kAt, cudaErrorInvalidValue);
}
}  // namespace scaling"""
    family = make_family(tmp_path, "textures", **{"scaling.cuh": DEVICE.replace("}  // namespace scaling", texture)})
    for number in range(3):  # without precompiled headers, with those that it makes, and with those that are there
        build(family, "scaling::look", number)
    with pytest.raises(errors.CompileError, match=r"scaling.cuh\(23\): error: identifier .nothing. is undefined"):
        build(
            make_family(
                tmp_path,
                "wrong",
                **{
                    "scaling.cuh": DEVICE.replace("= 7", "= nothing", 1).replace(
                        "__global__ void plain", "\n\n\n__global__ void plain"
                    )
                },
            ),
            "scaling::plain",
        )


def test_python_names_variants_as_host_parts_do(family):
    """What is built ahead is what is asked for later: the expressions are the same text."""
    names = """
        #include <sgl_kernel/variant.h>
        #include "params.h"
        namespace {
        host::Kernel<> kernel{"scaling.cuh", "k"};
        template <typename T> const char* text(const T& argument) {
          static host::Message message;
          message = {};
          message << kernel.get(argument);
          return message.c_str();
        }
        [[noreturn]] void raise(int which) {
          const char* found = which == 0 ? text(-7) : which == 1 ? text(std::uint32_t{64}) : which == 2 ? text(true)
              : which == 3 ? text(scaling::Mode::kTwice) : which == 4 ? text(DLDataType{kDLBfloat, 16, 1})
              : which == 5 ? text(~std::uint64_t{0}) : text(std::int64_t{1} << 40);
          throw host::Error("ValueError", found);
        }
        }
    """
    (family.csrc / "names.cpp").write_text(names)
    module = family.load_host("names", cpp_files=["names.cpp"], cpp_wrappers=[("named", "raise")])
    values = [-7, 64, True, CppEnum("scaling::Mode", 1), torch.bfloat16, 2**64 - 1, 2**40]
    for i, value in enumerate(values):
        with pytest.raises(ValueError, match=re.escape(f"k<{make_cpp_args(value)}>")):
            module.named(i)
    build(family, "scaling::fill", values[3])


TYPES = """\
namespace names {
enum class Mode { kOnce, kTwice };
template <typename T> struct Box {};
template <Mode kMode, int kNumber> struct Pair {};
}
"""


def test_any_type_with_a_name_is_a_template_argument(tmp_path, monkeypatch):
    """The text that the host compiler spells is what NVRTC reads."""
    monkeypatch.syspath_prepend(tmp_path)
    types = ["float", "unsigned long", "Box<int[3]>", "Box<int (*)[4]>", "Box<void(int, float*)>", "Box<Box<short>*>"]
    types += ["Pair<Mode::kTwice, -3>", "Pair<Mode(7), 1>"]
    cases = [f'    case {i}: throw host::Error("ValueError", k.get(host::type<{T}>));\n' for i, T in enumerate(types)]
    host = '#include <sgl_kernel/variant.h>\n#include "types.h"\nusing namespace names;\n'
    host += 'host::Kernel<> k{"types.cuh", "k"};\n'
    host += f"void spell(int which) {{\n  switch (which) {{\n{''.join(cases)}  }}\n}}\n"
    device = '#include "types.h"\ntemplate <typename T> __global__ void k() {}\n'
    family = make_family(tmp_path, "spelling", **{"types.h": TYPES, "types.cuh": device, "host.cpp": host})
    module = family.load_host("host", cpp_files=["host.cpp"], cpp_wrappers=[("spell", "spell")])
    symbols = set()
    for i in range(len(types)):
        with pytest.raises(ValueError, match=r"^k<") as caught:
            module.spell(i)
        with override_cuda_arch(9, 0):
            symbols.add(cubin_of(family, "types.cuh", str(caught.value)).symbol)
    assert len(symbols) == len(types)


def test_floats_that_are_no_numbers_are_template_arguments_too(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    text = "namespace scaling { template <double kValue> __global__ void set(double* data) { *data = kValue; } }"
    family = make_family(tmp_path, "floating", **{"scaling.cuh": text})
    for value in (0.5, float("inf"), -float("inf"), float("nan")):
        build(family, "scaling::set", value)


def test_a_matcher_that_verifies_nothing_is_an_error(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    family = make_family(tmp_path, "unverified", **{"host.cpp": HOST.replace(".verify(x);", ";", 1)})
    with pytest.raises(errors.CompileError, match=r"unused-result|ignoring return"):
        load(family)


PROGRAM = """\
namespace rows {
struct Copy {
  SGL_OPERANDS(x, out)
  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    return sgl::store(out = sgl::map([](float v) { return v; }, row[x]));
  }
};
host::RowProgram<Copy> copy{"f.h"};
void f(host::TensorView x) { copy({}, Copy::x = host::rows("x", x), Copy::out = host::rows("x", x)); }
}
using rows::f;
"""


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (
            "#include <sgl_kernel/tensor.h>\nstruct Mine { int x; };\nvoid f(host::TensorView, Mine) {}\n",
            r"cannot come from Python.*The error is in the wrapper SGL_EXPORT\(f, \(f\)\)\. The type is Mine\n",
        ),
        ("void g() {}\n", r"'f' was not declared.*The error is in the wrapper SGL_EXPORT\(f, \(f\)\)\n"),
        ("#include <sgl_kernel/vec.cuh>\nvoid f() {}\n", r"cuda_\w+\.h.*put the kernel into a \.cuh file"),
        (
            "#include <sgl_kernel/row_program.h>\n" + PROGRAM.replace(', Copy::out = host::rows("x", x)', ""),
            r"pass each operand that SGL_OPERANDS names once, F::x = rows\. It comes from \S+wrong\.cpp:11\n",
        ),
        (
            "#include <sgl_kernel/row_program.h>\n" + PROGRAM.replace("(float v)", "(float v, float w)"),
            r"takes a float of each value after it, and returns a float\. It comes from \S+wrong\.cpp:7\n",
        ),
        (
            "#include <sgl_kernel/variant.h>\nstruct Two { int a, b; SGL_FIELDS(a) };\n"
            'host::Kernel<Two> kernel{"f.cuh", "f"};\nvoid f() {}\n',
            r"1 name provided.*\. SGL_FIELDS names every field of the struct\n",
        ),
    ],
)
def test_an_error_of_the_host_compiler_says_what_it_is_about(family, text, hint):
    (family.csrc / "wrong.cpp").write_text(text)
    with pytest.raises(errors.CompileError, match=hint):
        family.load_host("wrong", cpp_files=["wrong.cpp"], cpp_wrappers=[("f", "f")])


def test_a_deferred_file_without_its_header_is_told_to_include_it(family):
    (family.csrc / "bare.cpp").write_text("void bare() {}\n")
    with pytest.raises(errors.CompileError, match=r"must include <sgl_kernel/deferred\.h>"):
        family.load_jit("bare", cpp_files=["bare.cpp"], cpp_wrappers=[("address", "host::address_of<bare>")])


def test_a_reference_that_would_lose_what_is_written_to_it_is_refused(family):
    (family.csrc / "lost.cpp").write_text("#include <sgl_kernel/tensor.h>\nvoid lost(std::int64_t& x) { x = 1; }\n")
    with pytest.raises(errors.CompileError, match="a write to a reference parameter would be lost"):
        family.load_host("lost", cpp_files=["lost.cpp"], cpp_wrappers=[("lost", "lost")])


def test_without_nvrtc_the_error_has_the_pip_line(family, monkeypatch):
    monkeypatch.setattr(nvrtc, "remembered_search", lambda *_: None)
    with pytest.raises(errors.ToolchainNotFoundError) as caught:
        build(family, "scaling::scale", 91, False, torch.float32)
    assert "NVRTC" in str(caught.value)
    assert 'pip install "sgljit-core[nvrtc]"' in str(caught.value)


def test_a_variant_on_disk_needs_no_nvrtc(family, monkeypatch):
    build(family, "scaling::scale", 92, False, torch.float32)
    monkeypatch.setattr(nvrtc, "remembered_search", lambda *_: None)
    build(family, "scaling::scale", 92, False, torch.float32)


def test_frozen_a_miss_names_the_variant(family):
    freeze("error")
    try:
        with pytest.raises(errors.CompileForbiddenError, match=r"scaling.scale<93, false, fp32_t> for sm_90a"):
            build(family, "scaling::scale", 93, False, torch.float32)
    finally:
        freeze("on")


def test_an_edit_of_the_device_file_makes_another_variant(family):
    before = variants_of(family)
    source = family.csrc / "scaling.cuh"
    text = source.read_text()
    source.write_text(text.replace("= 7", "= 8"))
    edited = variants_of(family)
    source.write_text(text)
    assert edited.image != before.image
    assert variants_of(family) == before


def variants_of(family: KernelFamily) -> Cubin:
    with override_cuda_arch(9, 0):
        return cubin_of(family, "scaling.cuh", "scaling::plain")


def test_threads_that_make_the_same_and_other_variants_at_once(family):
    failures: list[Exception] = []

    def work(i: int) -> None:
        try:
            build(family, "scaling::scale", 100 + i % 3, False, torch.float16)
        except errors.SgljitError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_while_a_host_part_is_compiled_the_headers_of_its_kernels_are_precompiled(family, monkeypatch):
    """Each device file's headers are precompiled once, where CUDA is in use and the host part is not there yet."""
    precompiled: list[str] = []
    done = threading.Event()
    real = nvrtc.compile_kernel

    def compile_kernel(found, source, expressions, options, headers):
        made = real(found, source, expressions, options, headers)
        if not expressions:
            precompiled.append(source)
            done.set()
        return made

    monkeypatch.setattr(nvrtc, "compile_kernel", compile_kernel)
    monkeypatch.setattr(arch, "target_in_use", lambda: Target("sm_90a", (9, 0)))
    load(family)
    assert done.wait(30)
    for thread in threading.enumerate():
        if thread.name == "sgljit-meanwhile":
            thread.join()
    assert precompiled == ['#include <sgl_kernel/device.cuh>\n#include "scaling.cuh"\n']
    build(family, "scaling::plain")

    again = paths.cache_root()  # by another name, so that the process looks on disk
    load(family, build_directory=again / ".." / again.name)
    assert not [thread for thread in threading.enumerate() if thread.name == "sgljit-meanwhile"]
    assert len(precompiled) == 1


def test_kernels_compile_without_room_for_precompiled_headers(family, monkeypatch):
    """Also when a cleaner of /tmp, or a child's end, has taken their directory away."""
    build(family, "scaling::scale", 201, False, torch.float16)
    shutil.rmtree(nvrtc.precompiled_directory())
    build(family, "scaling::scale", 202, False, torch.float16)

    def no_room() -> Path:
        raise OSError("no usable temporary directory")

    monkeypatch.setattr(nvrtc, "precompiled_directory", no_room)
    build(family, "scaling::scale", 203, False, torch.float16)


def test_a_source_that_does_not_compile_leaves_the_precompiled_headers(family):
    directory = nvrtc.precompiled_directory()
    for number in (205, 206):
        build(family, "scaling::scale", number, False, torch.float16)
    before = {file: file.stat().st_mtime_ns for file in directory.glob("*.pch")}
    assert before
    with pytest.raises(errors.CompileError, match="nothing"):
        build(family, "scaling::nothing", 1)
    build(family, "scaling::scale", 207, False, torch.float16)
    assert {file: file.stat().st_mtime_ns for file in directory.glob("*.pch")} == before


def test_a_kernel_whose_struct_does_not_name_its_fields_is_told_to(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    params = PARAMS.replace("  SGL_FIELDS(data, length)\n", "")
    family = make_family(tmp_path, "unnamed_fields", **{"params.h": params})
    with pytest.raises(errors.CompileError) as caught:
        build(family, "scaling::scale", 3, False, torch.float32)
    assert "write SGL_FIELDS(a, b, ...) into it, with their names" in str(caught.value).splitlines()[0]
    assert "T=scaling::Params" in caught.value.log


@pytest.mark.parametrize("left", [0, 100, 0.5, 0.999])
def test_a_damaged_file_of_precompiled_headers_is_made_anew(family, left):
    for number in (210, 211):
        build(family, "scaling::scale", number, False, torch.float16)
    directory = nvrtc.precompiled_directory()
    files = list(directory.glob("*.pch"))
    assert files
    for file in files:
        os.truncate(file, int(left * file.stat().st_size) if left < 1 else left)
    sizes = {file: file.stat().st_size for file in files}
    build(family, "scaling::scale", 212, False, torch.float16)
    assert any(file.stat().st_size != size for file, size in sizes.items())


def test_the_second_kernel_of_a_beginning_precompiles_its_headers_and_others_use_them(family, monkeypatch):
    """The first goes without: it is sooner there, and may be the only one."""
    monkeypatch.setattr(nvrtc, "_asked", set())
    shutil.rmtree(nvrtc.precompiled_directory())
    ways: list[str] = []
    real = nvrtc._compile

    def compiled(library, source, expressions, options):
        ways.append(next((option.partition("=")[0] for option in options if "-pch=" in option), ""))
        return real(library, source, expressions, options)

    monkeypatch.setattr(nvrtc, "_compile", compiled)
    for number in (221, 222, 223):
        build(family, "scaling::scale", number, False, torch.float16)
    assert ways == ["", "-create-pch", "-use-pch"]
    assert len(list(nvrtc.precompiled_directory().glob("*.pch"))) == 1


@pytest.mark.parametrize("file", ["number.cuh", "number.cu", "below/number.cuh"])
def test_an_edited_header_is_seen_by_device_files_of_any_name(family, file):
    """NVRTC itself does not look whether a header has changed since it was precompiled."""
    source = family.csrc / file
    source.parent.mkdir(exist_ok=True)
    functions = (f"__global__ void number{i}(int* x) {{ *x = VALUE + {i}; }}\n" for i in range(3))
    source.write_text(f'#include "value.h"\n{"".join(functions)}')
    for value in (123456789, 987654321):
        (source.parent / "value.h").write_text(f"#define VALUE {value}\n")
        for i in range(3):  # the last uses headers that were precompiled
            with override_cuda_arch(9, 0):
                cubin = cubin_of(family, file, f"number{i}")
            assert (value + i).to_bytes(4, "little") in cubin.image


def test_files_that_are_no_device_files_are_in_nobodys_way(family, tmp_path, monkeypatch):
    (family.csrc / ".#scaling.cuh").symlink_to("somebody@somewhere.1:2")  # an editor's lock
    (family.csrc / "directory.cuh").mkdir()
    build(family, "scaling::plain")
    nowhere = kernels.Sources("empty", tmp_path / "nowhere", tmp_path)
    kernels.prepare(nowhere, Target("sm_90a", (9, 0)))  # no error, no kernel to prepare for


def test_a_device_file_that_is_edited_while_it_compiles_is_compiled_again(family, monkeypatch):
    real = nvrtc.compile_kernel
    compiled: list[str] = []

    def compile_and_edit(*arguments):
        compiled.append("once")
        if len(compiled) == 1:
            (family.csrc / "params.h").write_text(PARAMS + "// edited\n")
        return real(*arguments)

    monkeypatch.setattr(nvrtc, "compile_kernel", compile_and_edit)
    build(family, "scaling::scale", 205, False, torch.float16)
    assert len(compiled) == 2


def test_a_device_file_that_does_not_compile_is_no_error_before_a_kernel_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    family = make_family(tmp_path, "unready", **{"scaling.cuh": DEVICE + "nonsense"})
    kernels.prepare(sources_of(family), Target("sm_90a", (9, 0)))
    with pytest.raises(errors.CompileError, match=r"nonsense|expected a"):
        build(family, "scaling::plain")


def test_a_build_directory_holds_all_that_a_family_makes(family, tmp_path):
    """The host part, what it asks for when it is called, and what is built ahead."""
    elsewhere = tmp_path / "elsewhere"
    module = load(family, build_directory=elsewhere)
    module.scale3(torch.ones(2), False)  # asks for a deferred function
    with override_cuda_arch(9, 0):
        build_variant(family, "scaling.cuh", "scaling::plain", build_directory=elsewhere)
    made = {entry.manifest.module for entry in sgljit_tools.cache.entries(elsewhere)}
    assert made == {"host", "scale_on_cpu", "scaling.plain"}
    assert family.name not in {entry.manifest.family for entry in sgljit_tools.cache.entries()}


@pytest.mark.slow
def test_a_wheel_may_carry_its_artifacts(family, tmp_path):
    """What is built into ``prebuilt/`` beside csrc serves a machine that has no compiler, from an empty cache."""
    carried = family.csrc.parent / "prebuilt"
    code = (
        "import sys, torch\nfrom sgljit_core import KernelFamily, override_cuda_arch\n"
        "from sgljit_tools.testing import build_variant\n"
        f"FAMILY = KernelFamily({family.name!r}, {family.name!r})\n"
        f"m = FAMILY.load_host('host', cpp_files=['host.cpp'], cpp_wrappers=[(n, n) for n in {EXPORTS}])\n"
        "x = torch.ones(2); m.scale3(x, False); print(x.tolist())\n"
        "with override_cuda_arch(9, 0): build_variant(FAMILY, 'scaling.cuh', 'scaling::plain')\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    clean = {**os.environ, "PYTHONPATH": path, "SGLJIT_CACHE_DIR": str(carried)}
    subprocess.run([sys.executable, "-c", code], env=clean, check=True, capture_output=True)
    bare = {**clean, "SGLJIT_CACHE_DIR": str(tmp_path / "empty"), "PATH": "/nowhere", "SGLJIT_JIT": "error"}
    result = subprocess.run([sys.executable, "-c", code], env=bare, check=False, capture_output=True, text=True)
    assert result.stdout.strip() == "[3.0, 3.0]", result.stderr

    # Whichever compilers are here: these are of other versions, and the PATH leads to them.
    for file in list(carried.rglob("manifest.json")):
        manifest = Manifest.parse(file.read_bytes())
        older = {name: f"older than {version}" for name, version in manifest.toolchain.items()} | {"nvrtc": "11.8"}
        other = dataclasses.replace(manifest, toolchain=older, observed={"/usr/include/stdio.h": "0"})
        file.write_bytes(other.dump())
        file.parent.rename(file.parent.parent / other.entry_name())
    equipped = {**bare, "PATH": os.environ["PATH"]}
    result = subprocess.run([sys.executable, "-c", code], env=equipped, check=False, capture_output=True, text=True)
    assert result.stdout.strip() == "[3.0, 3.0]", result.stderr

    # The core was upgraded: its headers have another text.
    def upgrade(**changed):
        for file in list(carried.rglob("manifest.json")):
            manifest = Manifest.parse(file.read_bytes())
            source = {**manifest.source, **changed}
            other = dataclasses.replace(manifest, source=source, core="0.0.9", plugin="acme 1.0")
            place = carried / other.location.path / other.entry_name()
            place.parent.mkdir(parents=True, exist_ok=True)
            file.parent.rename(place)
            (place / "manifest.json").write_bytes(other.dump())

    upgrade(**{"file core:/sgl_kernel/utils.h": "0" * 64})
    result = subprocess.run([sys.executable, "-c", code], env=bare, check=False, capture_output=True, text=True)
    assert result.stdout.strip() == "[3.0, 3.0]", result.stderr
    upgrade(core_abi="0")
    for environment in (bare, {**bare, "SGLJIT_JIT": "on"}):
        refused = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert "core_abi 0 -> 1" in refused.stderr
        assert (
            ". acme 1.0 carries it for the ABI of sgljit-core==0.0.9: pip install --upgrade acme, or "
            "pip install sgljit-core==0.0.9"
        ) in refused.stderr
    upgrade(core_abi="1")

    (family.csrc / "params.h").write_text(PARAMS + "// another version\n")
    stale = subprocess.run([sys.executable, "-c", code], env=bare, check=False, capture_output=True, text=True)
    assert "CompileForbiddenError" in stale.stderr


def test_a_carried_kernel_of_a_later_cuda_than_the_drivers_is_passed_over(family, monkeypatch):
    monkeypatch.setattr(gpu, "supported_major", lambda: 12)
    spec = BuildSpec(("plain",), family.csrc, Target("sm_90a", (9, 0)), cuda_files=("scaling.cuh",), kernel="plain")
    request = KernelRequest(spec, paths.cache_root())
    assert request.serves({"nvrtc": "12.8 (1 bytes)"})
    assert request.serves({"nvrtc": "11.8 (1 bytes)"})
    assert not request.serves({"nvrtc": "13.0 (1 bytes)"})
    monkeypatch.setattr(gpu, "supported_major", lambda: None)
    assert request.serves({"nvrtc": "13.0 (1 bytes)"})


@pytest.mark.gpu
class TestOnAGpu:
    def test_a_call_on_the_cpu_touches_no_gpu(self, tmp_path):
        """Not even while the host part is compiled, when a process that uses CUDA has NVRTC made ready."""
        code = (
            "import torch\nfrom sgljit_core import ops\nops['norm'].rmsnorm(torch.ones(1, 64), torch.ones(64))\n"
            "print(torch.cuda.is_initialized())"
        )
        (tmp_path / "cache").mkdir(mode=0o700)
        cold = {**os.environ, "SGLJIT_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", code], env=cold, capture_output=True, text=True)
        assert done.stdout == "False\n", done.stderr

    def test_values_for_every_argument_kind(self, family):
        module = load(family)
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for negate in (False, True):
                x = torch.arange(100, device="cuda").to(dtype)
                module.scale3(x, negate)
                assert torch.equal(x, torch.arange(100, device="cuda").to(dtype) * (-3 if negate else 3))
        y = torch.zeros(100, dtype=torch.int32, device="cuda")
        for twice in (False, True):
            module.fill(y, 21, twice, 256)
            assert y.eq(42 if twice else 21).all()

    def test_shared_memory_beyond_48_kib_and_occupancy(self, family):
        module = load(family)
        y = torch.zeros(100, dtype=torch.int32, device="cuda")
        room = module.room(y)
        assert room > 48 * 1024
        for smem in (256, 50_000, room, 1024):
            module.fill(y, smem, False, smem)
            assert y.eq(smem).all()
        assert module.occupancy(y, 256) > module.occupancy(y, room) == 1
        for smem in (room + 1, 10**9, 2**31, 2**32 + 1024, -1):  # the last is 2**64 - 1
            assert module.occupancy(y, smem) == 0
        with pytest.raises(RuntimeError, match="no block has 4294968320 bytes of shared memory"):
            module.fill(y, 1, False, 2**32 + 1024)

    def test_static_shared_memory_counts_too(self, family):
        module = load(family)
        y = torch.zeros(100, dtype=torch.int32, device="cuda")
        for smem in (1024, 48 * 1024 - 4, 48 * 1024, 1024, 48 * 1024):  # with 4 bytes of static shared memory
            module.fill(y, smem, False, smem)
            assert y.eq(smem).all()

    def test_arguments_that_do_not_fit_the_kernel_are_refused(self, family):
        module = load(family)
        x = torch.zeros(64, dtype=torch.int32, device="cuda")
        with pytest.raises(errors.SignatureError, match=r"has parameter 1: int\*, .*parameter 1: int\."):
            module.wrong_type(x)
        torch.cuda.synchronize()
        assert x.eq(0).all()

    def test_a_compile_error_passes_through_the_host_part_unchanged(self, family):
        with pytest.raises(errors.CompileError, match=r"scaling\.cuh has line 5: .* scale; .* fill; line 20: plain"):
            load(family).unknown(torch.zeros(1, dtype=torch.int32, device="cuda"))

    def test_it_launches_on_the_current_stream_and_from_threads_without_a_context(self, family):
        module = load(family)
        x = torch.ones(1 << 20, device="cuda")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            module.scale3(x, False)
        stream.synchronize()
        assert x.eq(3).all()
        y = torch.ones(64, device="cuda")
        thread = threading.Thread(target=module.scale3, args=(y, True))
        thread.start()
        thread.join()
        torch.cuda.synchronize()
        assert y.eq(-3).all()

    def test_it_keeps_to_the_multiprocessors_of_a_green_context(self, family):
        contexts = pytest.importorskip("torch.cuda.green_contexts")
        module = load(family)
        x = torch.full((10_000,), -1, dtype=torch.int32, device="cuda")
        module.multiprocessor(x)  # loaded in the primary context
        everywhere = len(x.unique())
        try:
            context = contexts.GreenContext.create(num_sms=16, device_id=0)
        except RuntimeError as error:
            pytest.skip(f"no green context here: {error}")
        context.set_context()
        try:
            module.multiprocessor(x.fill_(-1))
            torch.cuda.synchronize()
        finally:
            context.pop_context()
        assert x.min() >= 0
        assert len(x.unique()) <= 16 < everywhere

    def test_many_threads_meet_a_new_variant_at_once(self, family):
        module = load(family)
        xs = [torch.ones(64, device="cuda", dtype=torch.float64 if i % 2 else torch.float32) for i in range(64)]
        threads = [threading.Thread(target=module.scale3, args=(x, False)) for x in xs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.cuda.synchronize()
        assert all(x.eq(3).all() for x in xs)

    def test_a_graph_captures_a_known_variant_and_a_miss_raises_at_once(self, family):
        module = load(family)
        x = torch.ones(64, device="cuda")
        module.scale3(x, False)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            module.scale3(x, False)
        x.fill_(2)
        graph.replay()
        torch.cuda.synchronize()
        assert x.eq(6).all()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            x.add_(0)  # an empty graph is a warning of torch's
            with pytest.raises(errors.CaptureError, match=r"scaling\.scale<3, true"):
                module.scale3(x, True)
        torch.cuda.synchronize()
        module.scale3(x, True)
        assert x.eq(-18).all()

    def test_nvcc_and_nvrtc_give_the_same_results(self, family):
        """One device file on both roads."""
        wrapper = family.csrc / "whole.cu"
        wrapper.write_text(
            '#include "scaling.cuh"\n#include <sgl_kernel/tensor.h>\n#include <sgl_kernel/utils.cuh>\n'
            "void scale3(host::TensorView x, bool negate) {\n"
            "  const scaling::Params params{x.data_ptr(), static_cast<int>(x.numel())};\n"
            "  host::LaunchKernel launch(host::div_ceil(params.length, 64), 64, x.device());\n"
            "  negate ? launch(scaling::scale<3, true, bf16_t>, params)\n"
            "         : launch(scaling::scale<3, false, bf16_t>, params);\n}\n"
        )
        whole = family.load_jit("whole", cuda_files=["whole.cu"], cuda_wrappers=[("scale3", "scale3")])
        x = torch.randn(1000, device="cuda").bfloat16()
        y = x.clone()
        whole.scale3(x, True)
        load(family).scale3(y, True)
        assert torch.equal(x, y)
