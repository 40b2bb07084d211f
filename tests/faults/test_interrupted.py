"""Builds that are killed, stopped or interrupted, each at a barrier in the build."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
from kit import LOAD, artifacts, leftovers, made, running_below, until

import sgljit_tools.cache

# Stops ``before`` or after a function has run, and says so.
STOP = """
import importlib, threading
place = importlib.import_module(module)
for name in function.split(".")[:-1]:
    place = getattr(place, name)
name = function.split(".")[-1]
real = getattr(place, name)
def stop(*args, **kwargs):
    if not before:
        real(*args, **kwargs)
    Path(flag).touch()
    threading.Event().wait()
setattr(place, name, staticmethod(stop) if isinstance(vars(place).get(name), staticmethod) else stop)
"""

# Those of the quick run; the others differ from one of these in nothing that is on the disk.
QUICK = {"lock held", "staging made", "about to publish", "about to rename", "first rename done", "published"}
STEPS = {
    "sources read": ("sgljit_core.compilers.recipe", "scan", False),
    "compilers found": ("sgljit_core.jit.modules", "toolchain.find_toolchain", False),
    "looked for": ("sgljit_core.builds.obtain", "lookup.find", False),
    "lock's directory made": ("sgljit_core.cache.store", "lock_path", False),
    "lock held": ("sgljit_core.builds.making", "store.collect", True),
    "staging made": ("sgljit_core.jit.modules", "ModuleRequest.make", True),
    "compiled": ("sgljit_core.jit.modules", "ModuleRequest.make", False),
    "about to load": ("sgljit_core.jit.modules", "ModuleRequest.load", True),
    "loaded": ("sgljit_core.jit.modules", "ModuleRequest.load", False),
    "about to publish": ("sgljit_core.cache.store", "publish", True),
    "one file written": ("sgljit_core.cache.store", "write", False),
    "about to rename": ("sgljit_core.cache.store", "settle", True),
    "first rename done": ("pathlib", "Path.rename", False),  # the only one: nobody sees half of an artifact
    "renamed": ("sgljit_core.cache.store", "settle", False),
    "published": ("sgljit_core.cache.store", "publish", False),
    "about to clean up": ("sgljit_core.cache.store", "discard", True),
}

PUBLISHED = {"first rename done", "renamed", "published", "about to clean up"}


@pytest.mark.parametrize("step", [pytest.param(s, marks=() if s in QUICK else pytest.mark.slow) for s in STEPS])
def test_killed_at_every_step(step, children, cache, tmp_path):
    module, function, before = STEPS[step]
    flag = tmp_path / "stopped"
    child = children.start(STOP + LOAD, module=module, function=function, before=before, flag=str(flag))
    until(flag.exists)
    child.kill()
    assert_recovered(children, cache, published=step in PUBLISHED)


def assert_recovered(children, cache, published):
    assert len(artifacts(cache)) == published
    assert sgljit_tools.cache.verify() == []
    start = time.monotonic()
    assert children.run() == "1\n"
    assert time.monotonic() - start < 60  # nobody waits for the dead
    if published:  # nothing was built, so nothing was collected: the next prune does it
        sgljit_tools.cache.prune()
    assert leftovers(cache) == []
    assert len(artifacts(cache)) == 1
    assert sgljit_tools.cache.verify() == []


@pytest.mark.parametrize("phase", ["compile", "link"])
def test_killed_while_a_compiler_runs(phase, children, compiler, cache):
    compiler.hold(phase)
    child = children.start()
    until(lambda: compiler.is_held(phase))
    assert running_below(cache)
    child.kill()
    until(lambda: not running_below(cache), what="the end of the compilers")
    compiler.let_go(phase)
    assert_recovered(children, cache, published=False)


def test_killed_while_nvcc_runs(children, csrc, cache):
    """The real one, with its grandchildren, and with units side by side, which would take half a minute together."""
    for name in "abcdefgh":
        text = f"#include <cuda_fp16.h>\n#include <string>\nint {name}() {{ return 1; }}\n"
        (csrc / f"{name}.cu").write_text(text)
    files = [f"{name}.cu" for name in "abcdefgh"]
    code = LOAD.replace('cpp_files=["number.cpp"], cpp_wrappers=[("number", "number")]', f"cuda_files={files}")
    code = "from sgljit_core import override_cuda_arch\nwith override_cuda_arch(9, 0):\n" + "".join(
        f"    {line}\n" for line in code.replace("csrc=csrc", "csrc=csrc, header_only=False").splitlines()
    )
    child = children.start(code)
    until(lambda: any("cicc" in line or "cudafe" in line or "cc1plus" in line for line in running_below(cache)))
    child.kill()
    until(lambda: not running_below(cache), 15, "the end of the compilers")


@pytest.mark.slow
def test_killed_at_any_time(children, load, cache):
    """Fifty builders, each killed at a random moment of its build."""
    choose = random.Random(20261120)
    start = time.monotonic()
    load("first", flags=("-DVALUE=1000",))
    whole = time.monotonic() - start
    for i in range(50):
        flags = (f"-DVALUE={i}",)
        child = children.start("print('up')\n" + LOAD, markers=(str(i),), flags=flags)
        until(lambda: child.output)  # noqa: B023
        time.sleep(choose.uniform(0, 1.2 * whole))
        child.kill()
        until(lambda: not running_below(cache), what="the end of the compilers")
        assert sgljit_tools.cache.verify() == []
        assert load(str(i), flags=flags).number() == i
        if i % 10 == 9:
            sgljit_tools.cache.prune()
            assert leftovers(cache) == []
    load("last", flags=("-DVALUE=2000",))
    assert leftovers(cache) == []


@pytest.mark.slow
def test_a_stopped_builder_holds_up_nobody(children, compiler, cache):
    compiler.hold()
    builder = children.start()
    until(compiler.is_held)
    os.kill(builder.process.pid, signal.SIGSTOP)
    free = {"SGLJIT_CXX": "g++"}
    impatient = "from sgljit_core.builds import making\nmaking.LOCK_SECONDS = 1\n"
    output = children.run(impatient + LOAD, env=free)
    assert output.endswith("1\n")
    assert f"process {builder.process.pid} on " in output
    assert "compiling it here as well" in output
    os.kill(builder.process.pid, signal.SIGCONT)
    compiler.let_go()
    assert builder.join() == "1\n"
    assert len(artifacts(cache)) == 1


HOST = """
#include <sgl_kernel/deferred.h>
namespace {
host::Deferred<int()> deferred{"heavy.cpp", "heavy"};
int call() { return deferred(); }
}
"""

IN_CPP = """
import logging, os, signal, sys
logging.basicConfig(level=logging.INFO)
from sgljit_core import KernelFamily
sys.path.insert(0, site)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
signal.signal(signal.SIGINT, signal.default_int_handler)
host = KernelFamily("heavy", "heavy_family").load_host("host", cpp_files=["host.cpp"], cpp_wrappers=[("call", "call")])
Path(ready).touch()
while not Path(go).exists():
    pass
try:
    host.call()
except Exception as error:
    print("swallowed", repr(error))
except BaseException as error:
    print("arrived", repr(error))
print("then", host.call())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "text"), [(signal.SIGINT, "KeyboardInterrupt()"), (signal.SIGTERM, "SystemExit(7)")]
)
def test_an_interrupt_while_cpp_waits_for_a_deferred_function(children, compiler, cache, tmp_path, number, text):
    csrc = made(tmp_path / "heavy_family") / "csrc"
    csrc.mkdir()
    (csrc.parent / "__init__.py").touch()
    (csrc / "host.cpp").write_text(HOST)
    (csrc / "heavy.cpp").write_text("#include <sgl_kernel/deferred.h>\nint heavy() { return 42; }\n")
    ready, go = tmp_path / "ready", tmp_path / "go"
    child = children.start(IN_CPP, site=str(tmp_path), ready=str(ready), go=str(go))
    until(ready.exists)
    compiler.hold()
    go.touch()
    until(compiler.is_held)
    os.kill(child.process.pid, number)
    until(lambda: "interrupted while compiling" in child.output)
    until(lambda: not running_below(cache), what="the end of the compilers")
    compiler.let_go()
    output = child.join()
    assert f"arrived {text}\n" in output
    assert "swallowed" not in output
    assert "then 42" in output
    assert "interrupted while compiling heavy.heavy" in output
    assert sgljit_tools.cache.verify() == []
