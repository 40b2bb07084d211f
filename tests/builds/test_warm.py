"""A warm start: fast, and with nothing but the artifact."""

from __future__ import annotations

import statistics

from kit import python

CODE = """
import sys, time
import torch, tvm_ffi
from sgljit_core import load_jit
csrc = sys.argv[1]
start = time.perf_counter()
module = load_jit("number", cpp_files=["number.cpp"], cpp_wrappers=[("number", "number")], csrc=csrc)
seconds = time.perf_counter() - start
assert module.number() == 1
print(seconds)
"""

# The core headers as a real kernel includes them.
HEADERS = "#include <sgl_kernel/tensor.h>\n#include <sgl_kernel/utils.h>\n#define VALUE 1\n"


def test_a_hit_takes_five_milliseconds(csrc, children):
    """In a fresh process, after imports. Other tests may share the cores, so the better half counts here."""
    (csrc / "value.h").write_text(HEADERS)
    children.run()
    times = sorted(float(python(CODE, str(csrc)).stdout) for _ in range(8))
    assert statistics.median(times[:4]) < 0.005, times


def test_no_program_runs_on_a_hit(csrc, children):
    children.run()
    code = "import subprocess, os\ndef no(*a, **k): raise SystemExit('a program was started')\n"
    code += "import torch, tvm_ffi\nsubprocess.Popen.__init__ = no\nos.fork = no\nos.posix_spawn = no\n"
    result = python(code + CODE, str(csrc))
    assert result.returncode == 0, result.stderr


def test_a_hit_needs_no_compiler_no_path_and_no_cuda_home(csrc, load):
    load()
    result = python(CODE, str(csrc), PATH="", CUDA_HOME="", CUDA_PATH="", SGLJIT_CXX="none", HOME="")
    assert result.returncode == 0, result.stderr


def test_a_cuda_hit_needs_no_nvcc(csrc, cache):
    from sgljit_core import load_jit, override_cuda_arch

    (csrc / "arch.cu").write_text("int arch() { return SGL_CUDA_ARCH; }\n")
    with override_cuda_arch(9, 0):
        load_jit("arch", cuda_files=["arch.cu"], cuda_wrappers=[("arch", "arch")], csrc=csrc)
    code = CODE.replace("import load_jit", "import load_jit, override_cuda_arch")
    code = code.replace("module = load_jit", "with override_cuda_arch(9, 0): module = load_jit")
    code = code.replace("cpp_", "cuda_").replace("number.cpp", "arch.cu").replace('"number"', '"arch"')
    code = code.replace("module.number() == 1", "module.arch() == 900")
    result = python(code, str(csrc), PATH="", CUDA_HOME="", CUDA_PATH="", SGLJIT_CXX="none", SGLJIT_NVCC="none")
    assert result.returncode == 0, result.stderr


def test_an_upgraded_compiler_is_noticed(csrc, load, children, tmp_path):
    """A memory of a compiler's version lasts only as long as its file stays the same."""
    from sgljit_core.compilers import toolchain

    program = tmp_path / "fake-g++"
    source = tmp_path / "fake.cpp"

    def build(version: str) -> None:
        import subprocess

        source.write_text(f'#include <cstdio>\nint main() {{ std::puts("fake {version}"); }}\n')
        subprocess.run(["g++", source, "-o", tmp_path / "new"], check=True)
        (tmp_path / "new").replace(program)

    load()  # there is a cache to remember in
    build("1.0")
    assert toolchain._identify(program).version == "fake 1.0"
    toolchain._versions.clear()
    assert toolchain._identify(program).version == "fake 1.0"
    build("2.0")
    assert toolchain._identify(program).version == "fake 2.0"


def test_a_compiler_with_another_version_builds_its_own_artifact(load, children, compiler, csrc, cache):
    from kit import artifacts

    children.run()
    text = compiler.path.read_text()
    compiler.path.write_text(
        text.replace('exec "$REAL"', "", 0).replace(
            '*" --version "*) ', '*" --version "*) echo "g++ 99.1"; exit;;\n*" --vrsn "*) '
        )
    )
    assert children.run() == "1\n"
    assert compiler.calls() == 2
    assert len({path.parent.name for path in artifacts(cache)}) == 1  # one source, two toolchains
    assert len(artifacts(cache)) == 2
    assert children.run(env={"PATH": "", "SGLJIT_CXX": "none"}) == "1\n"  # without a compiler either serves
