"""A warm start needs nothing but the artifact. How fast it is, bench/cache.py measures."""

from __future__ import annotations

import os
import shutil

from kit import artifacts

from sgljit_core.compilers import includes
from sgljit_core.machine import trust

CODE = """
from sgljit_core import load_jit
module = load_jit("number", cpp_files=["number.cpp"], cpp_wrappers=[("number", "number")], csrc=csrc)
assert module.number() == 1
"""

# The core headers as a real kernel includes them.
HEADERS = "#include <sgl_kernel/tensor.h>\n#include <sgl_kernel/utils.h>\n#define VALUE 1\n"

WATCHED = """
import sys
def watch(event, arguments):
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn"):
        print(event, arguments)
    elif event == "open" and compiler in str(arguments[0]):
        print(event, arguments)
sys.addaudithook(watch)
"""


def test_a_hit_runs_no_program_and_opens_no_compiler(csrc, children):
    (csrc / "value.h").write_text(HEADERS)
    children.run()
    compiler = os.path.realpath(shutil.which(os.environ.get("SGLJIT_CXX") or os.environ.get("CXX") or "g++"))
    assert children.run(WATCHED + CODE, compiler=compiler) == ""
    (csrc / "value.h").write_text("#define VALUE 1\n")
    assert "Popen" in children.run(WATCHED + CODE, compiler=compiler)  # a miss is seen


NOTHING = {"PATH": "", "CUDA_HOME": "", "CUDA_PATH": "", "SGLJIT_CXX": "none"}


def test_a_hit_needs_no_compiler_no_path_and_no_cuda_home(load, children):
    load()
    children.run(CODE, env={**NOTHING, "HOME": ""})


def test_a_cuda_hit_needs_no_nvcc(nvcc, csrc, children):
    from sgljit_core import load_jit, override_cuda_arch

    (csrc / "arch.cu").write_text("int arch() { return SGL_CUDA_ARCH; }\n")
    with override_cuda_arch(9, 0):
        load_jit("arch", cuda_files=["arch.cu"], cuda_wrappers=[("arch", "arch")], csrc=csrc)
    code = CODE.replace("import load_jit", "import load_jit, override_cuda_arch")
    code = code.replace("module = load_jit", "with override_cuda_arch(9, 0): module = load_jit")
    code = code.replace("cpp_", "cuda_").replace("number.cpp", "arch.cu").replace('"number"', '"arch"')
    code = code.replace("module.number() == 1", "module.arch() == 900")
    children.run(code, env={**NOTHING, "SGLJIT_NVCC": "none"})


def test_a_compiler_with_another_version_builds_its_own_artifact(children, compiler, cache):
    children.run()
    compiler.path.write_text(
        compiler.path.read_text().replace(
            '*" --version "*) ', '*" --version "*) echo "g++ 99.1"; exit;;\n*" --vrsn "*) '
        )
    )
    assert children.run() == "1\n"
    assert compiler.calls() == 2
    assert len({path.parent.name for path in artifacts(cache)}) == 1  # one source, two toolchains
    assert len(artifacts(cache)) == 2
    assert children.run(env={"PATH": "", "SGLJIT_CXX": "none"}) == "1\n"  # without a compiler either serves


def test_the_way_to_a_root_is_checked_once_for_a_process(load, children, cache, monkeypatch):
    for value in "12":
        children.run(flags=(f"-DVALUE={value}",))
    monkeypatch.setattr(includes, "SETTLED_NS", 10**18)  # no scan is remembered: the cache is only read
    walked = []
    walk = trust.walk
    monkeypatch.setattr(trust, "walk", lambda path, **options: (walked.append(path), walk(path, **options))[1])
    for value in (1, 2):
        assert load(flags=(f"-DVALUE={value}",)).number() == value  # hits
    assert walked.count(cache) == 1
