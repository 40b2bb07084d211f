"""Without a CUDA driver a call does not look for one on disk each time, and one that is loaded later is found."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from sgljit_triton.tests.forked import Server

COUNTER = """
#include <dlfcn.h>
#include <cstring>
extern "C" int looks = 0;
extern "C" void* dlopen(const char* name, int mode) {
  static auto* next = reinterpret_cast<void* (*)(const char*, int)>(dlsym(RTLD_NEXT, "dlopen"));
  if (name != nullptr && std::strcmp(name, "libcuda.so.1") == 0) ++looks;
  return next(name, mode);
}
"""
DRIVER = 'extern "C" int asked = 0; extern "C" int cuPointerGetAttributes(...) { ++asked; return 1; }'
PROGRAM = """
import ctypes, sys, torch
from sgljit_core import ops
flag, tables = torch.zeros(1, dtype=torch.int32), torch.zeros(2, 8)
rows, pool, other = torch.tensor([1]), *(torch.tensor([t.data_ptr()]) for t in tables)
calls = {
    "wait_value": lambda: ops["wait_value"].stream_write_value(flag, 1),
    "hicache": lambda: ops["hicache"].transfer_hicache_all_layer_mla(
        pool, rows, other, rows, cache_src_stride_bytes=16, cache_dst_stride_bytes=16
    ),
}
call = calls[sys.argv[1]]
call()
call()
looks = ctypes.c_int.in_dll(ctypes.CDLL(None), "looks")
before = looks.value
for _ in range(100):
    call()
print(before > 0, looks.value - before)
asked = ctypes.c_int.in_dll(ctypes.CDLL(sys.argv[2]), "asked")
call()
print(asked.value > 0)
"""

NEEDS = """
#include <sgl_kernel/driver.h>
int version() {
  int found = 0;
  return host::driver::api().DriverGetVersion(&found);
}
"""
FAILS = """
import ctypes, sys
from sgljit_core import load_jit
module = load_jit("needs", cpp_files=["needs.cpp"], cpp_wrappers=[("version", "version")], csrc=sys.argv[1])
def call():
    try:
        return module.version()
    except RuntimeError as error:
        return str(error)
first = call()
looks = ctypes.c_int.in_dll(ctypes.CDLL(None), "looks")
before = looks.value
print(first)
print({call() for _ in range(100)} == {first}, before > 0, looks.value - before)
ctypes.CDLL(sys.argv[1] + "/libcuda.so")
print(call())
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """A library that counts the looks for a driver, and a driver with one function."""
    directory = tmp_path_factory.mktemp("libraries")
    if "libcuda.so.1" in subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout:
        pytest.skip("there is a driver")
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    for name, text in (("counter", COUNTER), ("libcuda", DRIVER)):
        (directory / f"{name}.cpp").write_text(text)
        options = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1" if name == "libcuda" else "-ldl"]
        subprocess.run([compiler, f"{name}.cpp", "-o", f"{name}.so", *options], cwd=directory, check=True)
    return directory


@pytest.fixture(scope="module")
def server(libraries):
    """The process that those of ``run`` are forked from, where looks are counted."""
    made = Server(libraries, LD_PRELOAD=str(libraries / "counter.so"))
    yield made
    made.close()


@pytest.fixture
def run(server):
    """Run code with arguments in a process that has imported torch."""

    def run(code, *arguments):
        environment = {**os.environ, "LD_PRELOAD": "", "PYTHONPATH": ""}
        return server.run(f"import sys; sys.argv = {['-c', *map(str, arguments)]}\n{code}", environment)

    return run


@pytest.mark.slow
def test_a_driver_that_is_needed_and_not_there_is_looked_for_once(cache, libraries, run):
    """Each call that needs the driver says why it is missing. A driver that is loaded later is found; this one lacks
    functions."""
    (libraries / "needs.cpp").write_text(NEEDS)
    result = run(FAILS, libraries)
    first, later, loaded = result.stdout.splitlines()
    assert "no CUDA driver on this machine: libcuda.so.1: cannot open shared object file" in first, result.stderr
    assert later == "True True 0"
    assert "the CUDA driver of this machine is older than 11.8 and has no cuInit" in loaded


@pytest.mark.parametrize("family", ["wait_value", "hicache"])
def test_a_driver_that_is_not_there_is_not_looked_for_at_each_call(libraries, run, family):
    result = run(PROGRAM, family, libraries / "libcuda.so")
    assert result.stdout.splitlines() == ["True 0", "True"], result.stderr
