"""AMD's GPUs: which target a build has, which hipcc it takes, and what hipcc makes of the headers and of kernels.

No test here needs an AMD GPU, and none ran on one.
"""

from __future__ import annotations

import ctypes
import string
import subprocess
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from headers import toolbox
from torch.utils.dlpack import to_dlpack

from sgljit_core import errors, is_arch_support_pdl, load_jit, ops
from sgljit_core.cache import keys
from sgljit_core.compilers import arch, recipe, toolchain
from sgljit_core.compilers.arch import cuda_target, override_target
from sgljit_core.jit import kernels
from sgljit_core.jit.modules import ModuleRequest
from sgljit_core.specs.build import BuildSpec, Target
from sgljit_tools.cli import new

GFX90A = Target("gfx90a", is_rocm=True)
SETTINGS = ("SGLJIT_HIPCC", "SGLJIT_CUDA_ARCH", "TVM_FFI_CUDA_ARCH_LIST")

CUDA = """
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/launch.cuh>

__global__ void negate_kernel(float* x, int64_t count) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < count) x[i] = -x[i];
}

void negate(host::TensorView x) {
  using namespace host;
  auto N = SymbolicSize{"length"};
  auto device = SymbolicDevice{};
  TensorMatcher({N}).with_dtype<float>().with_device<kDLCUDA, kDLROCM>(device).verify(x, "x");
  LaunchKernel(div_ceil(N.unwrap(), 256), 256, device.unwrap())(
      negate_kernel, static_cast<float*>(x.data_ptr()), N.unwrap());
}
"""


@pytest.fixture(autouse=True)
def _defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def rocm_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that is built for ROCm, on a machine with two GPUs of different kinds."""
    names = ["gfx942:sramecc+:xnack-", "gfx90a:sramecc+:xnack-"]
    monkeypatch.setattr(torch.version, "hip", "6.3.42131")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 4 if device == 0 else 0))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(gcnArchName=names[device])
    )


# ---- the target ----


def test_on_a_rocm_build_of_torch_the_target_is_that_of_the_device(rocm_torch: None) -> None:
    assert cuda_target() == GFX90A
    assert arch.target_in_use() == arch.scope() == GFX90A
    assert (GFX90A.is_rocm, GFX90A.cuda_arch, arch.CPU.is_rocm) == (True, None, False)
    assert not is_arch_support_pdl()


def test_gpus_of_one_capability_may_be_of_different_targets(rocm_torch: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # HIP reports 9.0 for gfx906, gfx908 and gfx90a.
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    assert arch.scope() == GFX90A
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert arch.scope() == Target("gfx942", is_rocm=True)


def test_a_name_beats_the_device(rocm_torch: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLJIT_CUDA_ARCH", "gfx1100")
    assert cuda_target() == Target("gfx1100", is_rocm=True)
    with override_target(Target("gfx950", is_rocm=True)):
        assert cuda_target() == Target("gfx950", is_rocm=True)


@pytest.mark.parametrize("text", ["gfx", "gfx9", "gfx90a:xnack-", "GFX90A", "gfx9-generic"])
def test_what_names_no_target_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLJIT_CUDA_ARCH", text)
    with pytest.raises(errors.ConfigError, match=f"SGLJIT_CUDA_ARCH='{text}' is no architecture; expected one such as"):
        cuda_target()


def test_without_a_device_the_error_names_a_target_of_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.3.42131")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(errors.NoTargetError, match=r"--cuda-arch 9\.0 \(AMD: gfx90a\) on the command line"):
        cuda_target()


# ---- instant variants ----


def test_a_variant_is_refused_with_what_works(rocm_torch: None, tmp_path: Path) -> None:
    sources = kernels.Sources("scaling", tmp_path, tmp_path / "cache")
    (tmp_path / "device.cuh").write_text("__global__ void plain(int* x) { *x = 7; }\n")
    text = "which NVRTC compiles for; the target is {}. On ROCm write a __global__ kernel in a .cu file and load it"
    with pytest.raises(errors.NoTargetError, match=text.format("gfx90a")):
        kernels.build_kernel(sources, "device.cuh", "plain")
    with pytest.raises(errors.NoTargetError, match=text.format("gfx942")):
        arch.device_target(0)
    kernels.prepare(sources, GFX90A)  # drops the error, as the variant itself will report it
    assert not (tmp_path / "cache").exists()


class OnRocm:
    """A tensor of the CPU that says by DLPack that it is on the first ROCm device."""

    def __init__(self, x: torch.Tensor) -> None:
        self._x = x

    def __dlpack_device__(self) -> tuple[int, int]:
        return 10, 0

    def __dlpack__(self, **_: Any) -> Any:
        capsule = to_dlpack(self._x)
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        ctypes.c_int.from_address(pointer(capsule, b"dltensor") + 8).value = 10  # behind the address of the data
        return capsule


def test_an_op_refuses_a_tensor_of_rocm_with_what_works() -> None:
    text = r"expected one of \[cpu, cuda\] but got rocm:0; on ROCm only kernels of load_jit run"
    with pytest.raises(errors.TensorMatchError, match=text):
        ops["activation"].silu_and_mul(OnRocm(torch.ones(4, 8)), OnRocm(torch.empty(4, 4)))


# ---- the compiler ----


def fake_hipcc(directory: Path, version: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / "hipcc"
    # Where there is no GPU, a helper of hipcc prints a traceback first.
    program.write_text(
        f'#!/bin/sh\necho Traceback >&2; echo "HIP version: {version} for $HIP_PLATFORM"\necho "AMD clang version 18"\n'
    )
    program.chmod(0o755)
    return program


def test_hipcc_is_looked_for_in_one_place_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = fake_hipcc(tmp_path / "bin", "1")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    found = toolchain.find_hipcc("a test")
    assert found == toolchain.Compiler(program, "HIP version: 1 for amd; AMD clang version 18")
    monkeypatch.setenv("SGLJIT_HIPCC", str(fake_hipcc(tmp_path / "own", "2")))
    assert toolchain.find_hipcc("a test").version.startswith("HIP version: 2 ")


def test_without_hipcc_the_error_lists_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(errors.ToolchainNotFoundError) as caught:
        toolchain.find_hipcc("a test")
    assert list(caught.value.searched) == [f"PATH={tmp_path}", "/opt/rocm/bin/hipcc"]
    assert "apt install hipcc" in str(caught.value)


def test_load_jit_says_what_it_needs_hipcc_for(
    rocm_torch: None, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLJIT_HIPCC", "/no/such/hipcc")
    with pytest.raises(errors.ToolchainNotFoundError) as caught:
        load_jit("negate", cuda_sources=CUDA, cuda_wrappers=[("negate", "negate")], csrc=tmp_path)
    text = str(caught.value)
    assert "hipcc not found; it is needed to compile negate for gfx90a" in text
    assert "SGLJIT_HIPCC=/no/such/hipcc" in text
    assert "nvcc" not in text


def test_a_hipcc_that_does_not_work_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = fake_hipcc(tmp_path, "6")
    program.write_text("#!/bin/sh\necho no clang >&2\nexit 1\n")
    monkeypatch.setenv("SGLJIT_HIPCC", str(program))
    with pytest.raises(errors.ToolchainNotFoundError, match="--version failed with 1: no clang") as caught:
        toolchain.find_hipcc("a test")
    assert "apt install hipcc" in str(caught.value)


# ---- flags and keys ----


def negate(target: Target, directory: Path, *flags: str) -> BuildSpec:
    return BuildSpec(
        markers=("negate",),
        csrc=directory,
        target=target,
        cpp_sources=("int one() { return 1; }",),
        cpp_wrappers=(("one", "one"),),
        cuda_sources=(CUDA,),
        cuda_wrappers=(("negate", "negate"),),
        cuda_cflags=flags,
    )


def test_flags_are_hipccs(tmp_path: Path) -> None:
    steps = recipe.flags(negate(GFX90A, tmp_path, "-DOWN"), [])
    assert steps.keys() == {"cxx", "link", "hipcc"}
    assert {"--offload-arch=gfx90a", "-DUSE_ROCM", "-fvisibility=hidden", "-DOWN"} <= set(steps["hipcc"])
    assert {"-fno-gnu-unique", "--expt-relaxed-constexpr", "-DSGL_SEPARATE"}.isdisjoint(steps["hipcc"])
    # The host parts agree on what the headers declare, and the core's own functions are in each of them.
    assert "-DUSE_ROCM" in steps["cxx"]
    assert "-DSGL_SEPARATE" not in steps["cxx"]
    assert recipe.generated_sources(negate(GFX90A, tmp_path)).keys() == {"generated.cu", "generated.cpp"}
    for_nvidia = recipe.flags(negate(Target("sm_90a", (9, 0)), tmp_path), [])
    assert for_nvidia.keys() == {"cxx", "link", "nvcc"}
    assert "-DUSE_ROCM" not in for_nvidia["cxx"]


def test_targets_and_compilers_have_keys_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [
        ModuleRequest(negate(Target(name, is_rocm=True), tmp_path), tmp_path) for name in ("gfx90a", "gfx942", "gfx90a")
    ]
    first, other, again = (request.location.source_key for request in requests)
    assert first == again != other
    assert requests[0].location.path.parts[0] == "gfx90a"
    found = []
    for version in ("6.3", "6.4"):
        monkeypatch.setenv("SGLJIT_HIPCC", str(fake_hipcc(tmp_path / version, version)))
        found.append(requests[0].find_tools("a test"))
    assert [tools.keys() for tools in found] == [{"cxx", "hipcc"}] * 2
    assert keys.key(found[0]) != keys.key(found[1])


# ---- waves of 64 lanes ----


@pytest.mark.slow
def test_reductions_and_shuffles_keep_to_their_warp_on_a_wave_of_64(tmp_path: Path) -> None:
    """The headers' own code for ROCm, compiled by g++ for lanes that take turns on the CPU."""
    directory = Path(toolbox.__file__).with_name("hip_on_cpu")
    flags = ["-std=c++20", "-O1", *toolbox.WARNINGS, "-Wno-unknown-pragmas", "-Wno-class-memaccess", "-DUSE_ROCM"]
    compiler = toolbox.host_compiler("g++")
    command = [compiler, *flags, f"-I{directory}", *toolbox.include_flags(), str(directory / "waves.cpp")]
    subprocess.run([*command, "-o", "waves"], check=True, cwd=tmp_path)
    result = subprocess.run([str(tmp_path / "waves")], capture_output=True, text=True, timeout=60)
    assert result.stdout == "0 wrong\n"


# ---- what hipcc makes of it ----

# Why a header cannot be compiled for AMD's GPUs. Each ends with the #error that says so.
LEFT_OUT = {
    "sgl_kernel/driver.h": "functions of CUDA's driver",
    "sgl_kernel/impl/row_layout.h": "layouts of row programs, by the driver's answers",
    "sgl_kernel/quantize.h": "a stage of row programs",
    "sgl_kernel/row_program.cuh": "kernels of row programs, which NVRTC compiles",
    "sgl_kernel/row_program.h": "row programs are instant variants",
    "sgl_kernel/runtime.h": "queries of CUDA's driver; runtime.cuh has those of HIP",
    "sgl_kernel/stages.h": "stages of row programs",
    "sgl_kernel/variant.h": "instant variants are compiled by NVRTC",
}


@pytest.fixture(scope="module")
def hipcc() -> toolchain.Compiler:
    try:
        return toolchain.find_hipcc("a test")
    except errors.ToolchainNotFoundError as error:
        pytest.skip(str(error).splitlines()[0])


def compiled(hipcc: toolchain.Compiler, source: str, directory: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """What hipcc says of a source for gfx90a, with the flags of a build."""
    (directory / "unit.cu").write_text(source)
    own = recipe.hipcc_flags(negate(GFX90A, directory, *flags))
    command = [str(hipcc.path), "-x", "hip", "-c", "unit.cu", "-o", "unit.o", *own, *toolbox.include_flags()]
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", **toolchain.HIP_ENVIRONMENT}
    return subprocess.run(command, capture_output=True, text=True, cwd=directory, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize("header", [*toolbox.HEADERS, *toolbox.ROCM_HEADERS])
def test_each_header_alone(hipcc: toolchain.Compiler, header: str, tmp_path: Path) -> None:
    result = compiled(hipcc, f"#include <{header}>\n", tmp_path, *toolbox.WARNINGS, "-fsyntax-only")
    if header in LEFT_OUT:
        first = next(line for line in result.stderr.splitlines() if "error:" in line)
        assert "need NVRTC and CUDA's driver: on ROCm write a __global__ kernel for load_jit" in first
    else:
        assert result.returncode == 0, result.stderr


# What a port uses of the headers, and what a kernel that was written for CUDA may use besides.
LANES = """
#include <sgl_kernel/utils.cuh>
#include <sgl_kernel/math.cuh>
#include <sgl_kernel/warp.cuh>

__global__ void lanes(float* x, bf16_t* y, uint32_t* found, double* wide) {
  using namespace device;
  const uint32_t lane = ptx::lane_id();
  static_assert(kWarpThreads == 32 && sizeof(kFullMask) == 4);
  x[lane] = warp::reduce_sum(x[lane]) + __shfl_xor_sync(0xffffffff, x[lane], 16);
  x[lane] += __shfl_down_sync(kFullMask, x[lane], 1);
  y[lane] = warp::reduce_max(y[lane]);
  wide[lane] = __shfl_up_sync(__activemask(), wide[lane], 1);
  const uint32_t ballot = __ballot_sync(kFullMask, x[lane] > 0);
  static_assert(sizeof(__activemask()) == 4 && sizeof(__ballot_sync(kFullMask, 1)) == 4);
  found[lane] = __any_sync(ballot, x[lane] > 1) + __all_sync(ballot, x[lane] > 2) + __popc(ballot);
  __syncwarp();
  __syncwarp(ballot);
}
"""


ATOMICS = """
#include <sgl_kernel/atomic.cuh>

template <typename... T>
__global__ void update(T*... x) {
  using namespace device;
  ((x[1] = atomic::add(x, x[4]), x[2] = atomic::max(x, x[5]), x[3] = atomic::min(x, x[6])), ...);
}
template __global__ void update(float*, double*, fp16_t*, bf16_t*);
template __global__ void update(int*, unsigned*, long*, unsigned long*, long long*, unsigned long long*);
"""


@pytest.mark.slow
def test_atomics_of_all_types(hipcc: toolchain.Compiler, tmp_path: Path) -> None:
    result = compiled(hipcc, ATOMICS, tmp_path, *toolbox.WARNINGS)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_functions_of_a_warp_take_masks_of_32_bits(hipcc: toolchain.Compiler, tmp_path: Path) -> None:
    result = compiled(hipcc, LANES, tmp_path, *toolbox.WARNINGS)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("__shfl_xor_sync(0xffffffffffffffffull, x[0], 32)", "no matching function for call to '__shfl_xor_sync'"),
        ("__ballot_sync(~0ull, 1)", "no matching function for call to '__ballot_sync'"),
        ("threadIdx.x % warpSize", "a wave may have 64 lanes, a warp has device::kWarpThreads = 32"),
        ("device::warp::reduce_sum<float, 64>(x[0])", "power of two of at most 32 lanes"),
        ("(device::ptx::prefetch(x), 1)", "no member named 'prefetch' in namespace 'device::ptx'"),
        ("host::runtime::get_cc_major(0)", "no member named 'get_cc_major' in namespace 'host::runtime'"),
    ],
)
def test_what_would_be_wrong_on_a_wave_does_not_compile(
    hipcc: toolchain.Compiler, code: str, expected: str, tmp_path: Path
) -> None:
    source = "#include <sgl_kernel/runtime.cuh>\n#include <sgl_kernel/warp.cuh>\n#include <sgl_kernel/utils.cuh>\n"
    result = compiled(hipcc, source + f"__global__ void kernel(float* x) {{ x[1] = {code}; }}\n", tmp_path)
    assert result.returncode != 0
    assert expected in result.stderr


@pytest.mark.slow
def test_without_the_macro_the_error_says_so(hipcc: toolchain.Compiler, tmp_path: Path) -> None:
    result = compiled(hipcc, "#include <sgl_kernel/arch.cuh>\n", tmp_path, "-UUSE_ROCM")
    assert "hipcc needs -DUSE_ROCM, which load_jit passes" in result.stderr


PORTS = Path(toolbox.__file__).with_name("ports")
ADD_CONSTANT = Path(__file__).parents[2] / "examples/sgljit-add-constant/sgljit_add_constant/csrc"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("reductions", {"cuda_files": ["reductions.cu"], "csrc": toolbox.CSRC, "header_only": False}),
        ("norm", {"cuda_files": ["norm.cu"], "csrc": toolbox.CSRC, "header_only": False}),
        ("elements", {"cuda_files": ["elements.cu"], "csrc": toolbox.CSRC, "header_only": False}),
        (
            "gather",
            {
                "cuda_files": ["gather_rows.cuh"],
                "cuda_sources": "#include <algorithm>",
                "cuda_wrappers": [("gather", "sglang::GatherRows<bf16_t, 512, true>::run")],
                "csrc": PORTS,
            },
        ),
        (
            "add_constant",
            {
                "cuda_files": ["add_constant.cu"],
                "cuda_wrappers": [("add_constant", "add_constant<7>")],
                "csrc": ADD_CONSTANT,
            },
        ),
    ],
)
def test_load_jit_links_and_loads_a_module(
    hipcc: toolchain.Compiler, rocm_torch: None, cache: Path, name: str, options: dict[str, Any]
) -> None:
    assert load_jit(name, **options) is not None
    [library] = cache.glob(f"gfx90a/_/{name}/*/*/module.so")
    text = library.read_bytes()
    assert b"amdgcn-amd-amdhsa--gfx90a" in text
    assert b"libamdhip64.so" in text


NEW_FILES = Path(new.__file__).with_name("new_files")


@pytest.mark.slow
def test_the_kernel_of_a_new_package(hipcc: toolchain.Compiler, rocm_torch: None, cache: Path, tmp_path: Path) -> None:
    """What ``sgljit new --road load_jit`` writes."""
    template = string.Template((NEW_FILES / "load_jit/PACKAGE/csrc/OP.cu.in").read_text())
    (tmp_path / "twice.cu").write_text(template.substitute(op="twice", namespace="acme"))
    wrappers = [(f"twice_{dtype}", f"acme::call_twice<{dtype}>") for dtype in ("float", "fp16_t", "bf16_t")]
    assert load_jit("twice", cuda_files=["twice.cu"], cuda_wrappers=wrappers, csrc=tmp_path) is not None


@pytest.mark.slow
def test_a_module_checks_its_tensors(hipcc: toolchain.Compiler, rocm_torch: None, cache: Path, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"cuda_sources": CUDA, "cuda_wrappers": [("negate", "negate")], "csrc": tmp_path}
    module = load_jit("negate", **arguments, cpp_sources="int one() { return 1; }", cpp_wrappers=[("one", "one")])
    assert module.one() == 1
    with pytest.raises(errors.TensorMatchError, match=r"expected one of \[cuda, rocm\] but got cpu"):
        module.negate(torch.ones(3))
    with pytest.raises(errors.CompileError, match="use of undeclared identifier 'threadIndex'"):
        load_jit("negate", **{**arguments, "cuda_sources": CUDA.replace("threadIdx", "threadIndex")})
