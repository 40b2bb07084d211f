"""load_jit, with real compilers."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from headers import toolbox

import sgljit_tools.cache
from sgljit_core import errors, load_jit, override_cuda_arch
from sgljit_core.compilers.recipe import flags
from sgljit_core.specs.build import BuildSpec, Target

SCALE = """
#include <sgl_kernel/tensor.h>
template <int kFactor>
void scale(host::TensorView x) {
  auto N = host::SymbolicSize{"length"};
  host::TensorMatcher({N}).with_dtype<float>().with_device<kDLCPU>().verify(x);
  auto* data = static_cast<float*>(x.data_ptr());
  for (auto i : host::irange(N.unwrap())) data[i] *= kFactor;
}
"""

# A kernel as its author would have written it for another engine: tvm-ffi's own types and include.
TVM = """
#include <sgl_kernel/tensor.h>
#include <tvm/ffi/container/tensor.h>
void twice(tvm::ffi::TensorView x) {
  auto N = host::SymbolicSize{"length"};
  host::TensorMatcher({N}).with_dtype<float>().with_device<kDLCPU>().verify(x);
  auto* data = static_cast<float*>(x.data_ptr());
  for (int64_t i = 0; i < x.size(0); ++i) data[i] *= 2;
}
"""

CUDA = """
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/utils.cuh>
__global__ void negate_kernel(float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = -x[i];
}
void negate(host::TensorView x) {
  using namespace host;
  auto N = SymbolicSize{"length"};
  auto device = SymbolicDevice{};
  TensorMatcher({N}).with_dtype<float>().with_device<kDLCUDA>(device).verify(x);
  LaunchKernel(div_ceil(N.unwrap(), 128), 128, device.unwrap())(
      negate_kernel, static_cast<float*>(x.data_ptr()), static_cast<int>(N.unwrap()));
}
"""


def write(directory: Path, **sources: str) -> Path:
    for name, text in sources.items():
        (directory / name.replace("__", ".")).write_text(textwrap.dedent(text))
    return directory


def scale(csrc: Path, factor: int, **options):
    wrappers = [("scale", f"scale<{factor}>")]
    return load_jit("scale", str(factor), cpp_files=["scale.cpp"], cpp_wrappers=wrappers, csrc=csrc, **options)


def test_a_cpp_module_runs_and_is_loaded_once(tmp_path):
    csrc = write(tmp_path, scale__cpp=SCALE)
    x = torch.arange(4.0)
    scale(csrc, 3).scale(x)
    assert x.tolist() == [0, 3, 6, 9]
    assert scale(csrc, 3) is scale(csrc, 3)
    assert scale(csrc, 2) is not scale(csrc, 3)


def test_the_same_markers_with_another_source_do_not_collide(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    x = torch.ones(1)
    scale(write(tmp_path / "a", scale__cpp=SCALE), 3).scale(x)
    scale(write(tmp_path / "b", scale__cpp=SCALE.replace("*= kFactor", "+= kFactor")), 3).scale(x)
    assert x.item() == 6


def test_extra_flags_and_include_paths_reach_the_compiler(tmp_path):
    (tmp_path / "more").mkdir()
    write(tmp_path / "more", more__h="#define BONUS 10\n")
    csrc = write(tmp_path, bonus__cpp="#include <more.h>\nint bonus() { return BONUS + EXTRA; }\n")
    module = load_jit(
        "bonus",
        cpp_files=["bonus.cpp"],
        cpp_wrappers=[("bonus", "bonus")],
        extra_cflags=["-DEXTRA=5"],
        extra_include_paths=[tmp_path / "more"],
        csrc=csrc,
    )
    assert module.bonus() == 15


def test_files_that_export_themselves_are_units_of_their_own(tmp_path):
    text = "#include <sgl_kernel/export.h>\nint helper();\nint answer() { return helper(); }\n"
    text += "SGL_EXPORT(answer, (answer))\n"
    csrc = write(tmp_path, a__cpp=text, b__cpp="int helper() { return 42; }\n")
    assert load_jit("units", cpp_files=["a.cpp", "b.cpp"], header_only=False, csrc=csrc).answer() == 42


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        ("int help(); int a() { return help(); }", "", r"undefined reference to `help\(\)'.* to cpp_files, or its"),
        ("int help() { return 1; } int a() { return help(); }", "int help() { return 2; }", "an anonymous namespace"),
        ("int a() { return 1; }", "namespace { int a() { return 2; } } SGL_EXPORT(a, (a))", "Two files export a with"),
    ],
    ids=["nobody defines it", "two define it", "two export it"],
)
def test_units_that_do_not_link_are_an_error_that_names_the_symbol(tmp_path, a, b, text):
    """And not the end of the process at the first call."""
    include = "#include <sgl_kernel/export.h>\n"
    csrc = write(tmp_path, a__cpp=f"{include}{a}\nSGL_EXPORT(a, (a))\n", b__cpp=f"{include}{b}\n")
    with pytest.raises(errors.CompileError, match=text):
        load_jit("units", cpp_files=["a.cpp", "b.cpp"], header_only=False, csrc=csrc)


INCLUDE = "/opt/cuda/include/crt"


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (
            f"{INCLUDE}/host_config.h:137:2: error: #error -- unsupported GNU version! gcc versions later than 15 are",
            "Set SGLJIT_CXX to a compiler that this nvcc supports",
        ),
        (
            f"{INCLUDE}/host_config.h:151:2: error: -- unsupported clang version! clang version must be less than 21",
            "Set SGLJIT_CXX to a compiler that this nvcc supports",
        ),
        (
            "/usr/include/x86_64-linux-gnu/bits/mathcalls.h(206): error: exception specification is incompatible with "
            f'that of previous function "rsqrt" (declared at line 629 of {INCLUDE}/math_functions.h)',
            "This nvcc is too old for the C library: set SGLJIT_NVCC to a newer one",
        ),
    ],
    ids=["GCC", "clang", "C library"],
)
def test_a_host_that_is_too_new_for_nvcc_is_an_error_with_the_remedy(tmp_path, monkeypatch, error, remedy):
    """The errors are those of nvcc 13.0 with g++ 16, clang 21 and glibc 2.43."""
    compiler = tmp_path / "refusing-g++"
    (tmp_path / "error").write_text(error)
    compiler.write_text(f'#!/bin/sh\ncase "$*" in --version) exec g++ "$@" ;; esac\ncat {tmp_path}/error\nexit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("SGLJIT_CXX", str(compiler))
    csrc = write(tmp_path, n__cpp="int n() { return 1; }\n")
    with pytest.raises(errors.CompileError) as caught:
        load_jit("refused", cpp_files=["n.cpp"], cpp_wrappers=[("n", "n")], csrc=csrc)
    assert caught.value.first_error == f"{error}. {remedy}"


def test_an_error_in_one_unit_ends_the_others(tmp_path, monkeypatch):
    compiler = tmp_path / "slow-g++"
    compiler.write_text('#!/bin/sh\ncase "$*" in *slow.cpp*) sleep 60 ;; esac\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("SGLJIT_CXX", str(compiler))
    monkeypatch.setenv("SGLJIT_JOBS", "2")
    csrc = write(tmp_path, slow__cpp="int f() { return 1; }\n", bad__cpp="nonsense\n")
    start = time.monotonic()
    with pytest.raises(errors.CompileError, match="nonsense"):
        load_jit("units", cpp_files=["slow.cpp", "bad.cpp"], header_only=False, csrc=csrc)
    assert time.monotonic() - start < 30


LATE = """
import atexit, threading, time, torch
from sgljit_core import load_jit
def load(name):
    print(load_jit(name, cpp_files=["n.cpp"], cpp_wrappers=[("n", "n")], csrc={csrc!r}).n(), flush=True)
atexit.register(load, "at_the_end")
def outlive():
    threading.main_thread().join()
    load("outliving")
threading.Thread(target=outlive).start()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="3.12 starts no thread while it ends")
def test_modules_are_compiled_while_the_interpreter_ends(tmp_path):
    """In a thread that outlives the main thread, and by a function of atexit."""
    write(tmp_path, n__cpp="int n() { return 7; }\n")
    code = LATE.format(csrc=str(tmp_path))
    child = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert child.stdout == "7\n7\n", child.stderr


def test_flags_for_cpp_files_do_not_reach_the_core_where_there_are_none(tmp_path):
    spec = BuildSpec(
        ("m",), tmp_path, Target("sm_90a", (9, 0)), cuda_files=("m.cu",), cuda_wrappers=(("m", "m"),), cflags=("-Odd",)
    )
    assert "-Odd" not in flags(spec, [])["cxx"]
    assert "-Odd" in flags(dataclasses.replace(spec, cpp_files=("m.cpp",)), [])["cxx"]


NO_DESCRIPTOR = """
import resource
import tvm_ffi
from sgljit_core import errors
from sgljit_core.load import library
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 4096))
try:
    library.load_library(b"", "one_more")
except errors.ArtifactLoadError as error:
    print(error)
"""


@pytest.mark.slow
def test_without_a_free_descriptor_the_error_says_how_to_get_one(script):
    child = script(NO_DESCRIPTOR)
    assert child.stdout.startswith("one_more cannot be loaded, as there is no file for it: "), child.stderr
    assert child.stdout.endswith("Too many open files. Raise the limit (ulimit -n)\n")


def test_a_kernel_with_tvm_ffis_own_types_runs_unchanged(tmp_path):
    csrc = write(tmp_path, twice__cpp=TVM)
    module = load_jit("twice", cpp_files=["twice.cpp"], cpp_wrappers=[("twice", "twice")], csrc=csrc)
    x = torch.ones(3)
    module.twice(x)
    assert x.tolist() == [2, 2, 2]
    with pytest.raises(errors.TensorMatchError, match="Root cause"):
        module.twice(torch.ones(3, dtype=torch.float64))


def test_a_match_failure_is_a_value_error_and_a_runtime_error_with_the_whole_text(tmp_path):
    module = scale(write(tmp_path, scale__cpp=SCALE), 3)
    with pytest.raises(errors.TensorMatchError) as caught:
        module.scale(torch.ones(2, 3, dtype=torch.int64))
    text = str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, RuntimeError)
    for part in ("2, 3", "3, 1", "int64", "cpu", "scale.cpp:6", "Root cause"):
        assert part in text, text


def test_an_error_names_the_file_by_its_place_in_csrc_not_by_where_the_tree_lies(tmp_path):
    module = scale(write(tmp_path, scale__cpp=SCALE), 3)
    with pytest.raises(errors.TensorMatchError) as caught:
        module.scale(torch.ones(2, 3))
    assert str(tmp_path) not in str(caught.value)


def test_a_compile_error_has_the_first_real_error_the_command_and_the_kept_directory(tmp_path):
    csrc = write(
        tmp_path, bad__cpp='#include <sgl_kernel/utils.h>\n#warning "mind this"\nint bad() { return nowhere; }\n'
    )
    with pytest.raises(errors.CompileError) as caught:
        load_jit("bad", "7", cpp_files=["bad.cpp"], cpp_wrappers=[("bad", "bad")], csrc=csrc)
    error = caught.value
    first = str(error).splitlines()[0]
    assert "bad<7> for cpu" in first
    assert "nowhere" in first
    assert "bad.cpp:3" in first
    assert "mind this" in error.log
    assert error.command in str(error)
    assert "generated.cpp" in error.command
    assert (error.build_directory / "generated.cpp").is_file()
    assert str(error.build_directory) in str(error)


def test_a_missing_brace_is_said_to_be_one_and_no_lack_of_memory():
    """g++ quotes <new>, where bad_alloc is, and names error.h on the way."""
    text = "namespace a {\ninline long f(long x) { return x; }"
    with pytest.raises(errors.CompileError) as caught:
        load_jit("brace", cpp_sources=text, cpp_wrappers=[("f", "a::f")])
    assert "memory" not in str(caught.value).splitlines()[0]
    assert ": error: " in str(caught.value).splitlines()[0]


@pytest.mark.parametrize(
    ("missing", "line"),
    [("0_generated.cpp.d", "rm -f *.d"), ("module.so", "rm -f *.so")],
)
def test_a_compiler_that_leaves_a_file_out_is_named_and_not_the_disk(load, compiler, missing, line):
    head, _, call = compiler.path.read_text().rpartition("\nexec ")
    compiler.path.write_text(f"{head}\n{call.strip()} && {line}\n")
    with pytest.raises(errors.CompileError, match=f"the compiler reported success, and wrote no {missing}"):
        load()


def test_a_line_directive_of_the_author_does_not_hide_the_error():
    with pytest.raises(errors.CompileError, match="int"):
        load_jit("line", cpp_sources='#line 900 "generated.cpp"\nint int;', cpp_wrappers=[("f", "f")])


def test_a_link_error_is_a_compile_error(tmp_path):
    csrc = write(tmp_path, lost__cpp="int lost();\nint call() { return lost(); }\n")
    with pytest.raises(errors.CompileError, match=r"undefined reference to .lost\(\)"):
        load_jit(
            "lost",
            cpp_files=["lost.cpp"],
            cpp_wrappers=[("call", "call")],
            extra_ldflags=["-Wl,--no-undefined"],
            csrc=csrc,
        )


def test_without_a_host_compiler_the_error_lists_where_it_looked_and_what_to_install(tmp_path, monkeypatch):
    csrc = write(tmp_path, scale__cpp=SCALE)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(errors.ToolchainNotFoundError) as caught:
        scale(csrc, 12345)
    text = str(caught.value)
    assert "a C++ compiler not found; it is needed to compile scale<12345> for cpu" in text
    assert f"g++ on PATH={tmp_path}" in text
    assert "apt install g++" in text


def test_without_nvcc_the_error_lists_where_it_looked_and_the_pip_line(tmp_path, monkeypatch):
    csrc = write(tmp_path, negate__cu=CUDA)
    monkeypatch.setenv("SGLJIT_NVCC", "/no/such/nvcc")
    with override_cuda_arch(9, 0), pytest.raises(errors.ToolchainNotFoundError) as caught:
        load_jit("negate", cuda_files=["negate.cu"], cuda_wrappers=[("negate", "negate")], csrc=csrc)
    text = str(caught.value)
    assert "nvcc not found; it is needed to compile negate for sm_90a" in text
    assert "SGLJIT_NVCC=/no/such/nvcc" in text
    assert 'pip install "sgljit-core[cuda]"' in text


def test_what_is_outside_the_key_does_not_reach_the_compiler(tmp_path, monkeypatch):
    (tmp_path / "poison").mkdir()
    write(tmp_path / "poison", cstdint="#error poisoned\n")
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(tmp_path / "poison"))
    monkeypatch.setenv("CPATH", str(tmp_path / "poison"))
    (tmp_path / "src").mkdir()
    source = "#include <cstdint>\nint clean() { return 1; }\n"
    csrc = write(tmp_path / "src", clean__cpp=source)
    assert load_jit("clean", cpp_files=["clean.cpp"], cpp_wrappers=[("clean", "clean")], csrc=csrc).clean() == 1


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        pytest.param((8, 0), "sm_80", marks=pytest.mark.slow),
        ((9, 0), "sm_90a"),
        pytest.param((10, 0), "sm_100a", marks=pytest.mark.slow),
    ],
)
def test_a_cuda_module_builds_and_loads_without_a_gpu(nvcc, tmp_path, capability, name):
    csrc = write(tmp_path, negate__cu=CUDA)
    wrappers = [("negate", "negate")]
    with override_cuda_arch(*capability):
        module = load_jit(
            "negate", cuda_files=["negate.cu"], cuda_wrappers=wrappers, csrc=csrc, build_directory=tmp_path / "cache"
        )
    with pytest.raises(errors.TensorMatchError) as caught:
        module.negate(torch.ones(3))
    assert str(caught.value) == (
        "negate(): Tensor match failed for Tensor<3>[strides=<1>, dtype=float32, device=cpu] at csrc/negate.cu:12\n"
        "- Root cause: Device mismatch: expected one of [cuda] but got cpu"
    )
    assert (tmp_path / "cache" / name).is_dir()


@pytest.mark.slow
def test_a_module_may_hold_both_languages(nvcc, tmp_path):
    csrc = write(tmp_path, negate__cu=CUDA, scale__cpp=SCALE)
    with override_cuda_arch(9, 0):
        module = load_jit(
            "both",
            cpp_files=["scale.cpp"],
            cpp_wrappers=[("scale", "scale<2>")],
            cuda_files=["negate.cu"],
            cuda_wrappers=[("negate", "negate")],
            csrc=csrc,
        )
    x = torch.ones(2)
    module.scale(x)
    assert x.tolist() == [2, 2]
    assert module.negate is not None


def test_a_second_process_loads_without_compiling(tmp_path, script):
    csrc = write(tmp_path, scale__cpp=SCALE)
    scale(csrc, 4)
    code = f"""
import os, torch
os.environ["PATH"] = "/nowhere"
from sgljit_core import load_jit
module = load_jit("scale", "4", cpp_files=["scale.cpp"], cpp_wrappers=[("scale", "scale<4>")], csrc={str(csrc)!r})
x = torch.ones(1); module.scale(x); print(x.item())
"""
    result = script(code)
    assert result.stdout.strip() == "4.0", result.stderr


@pytest.mark.gpu
def test_a_cuda_module_runs_on_the_current_stream(tmp_path):
    csrc = write(tmp_path, negate__cu=CUDA)
    module = load_jit("negate", cuda_files=["negate.cu"], cuda_wrappers=[("negate", "negate")], csrc=csrc)
    x = torch.arange(1000.0, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        module.negate(x)
    stream.synchronize()
    assert torch.equal(x.cpu(), -torch.arange(1000.0))


def test_a_module_compiles_with_clang(tmp_path, monkeypatch):
    monkeypatch.setenv("SGLJIT_CXX", toolbox.host_compiler("clang++"))
    source = "static double half(double x) { return x / 2; }\n"
    module = load_jit("half", cpp_sources=source, cpp_wrappers=[("half", "half")], build_directory=tmp_path)
    assert module.half(3.0) == 1.5
    (entry,) = sgljit_tools.cache.entries(tmp_path)
    assert "clang version" in entry.manifest.toolchain["cxx"]
