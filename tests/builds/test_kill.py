"""SIGKILL of the builder, in every phase."""

from __future__ import annotations

import random
import time

import pytest
from kit import LOAD, artifacts, leftovers, running_below, until

import sgljit_core.cache

# Stops in a function of the driver's way: ``before`` or after it has run, and says so.
STOP = """
import time
from sgljit_core.builds.modules import ModuleRequest
from sgljit_core.cache import store
place = {"store": store, "request": ModuleRequest}[where]
real = getattr(place, function)
def stop(*args, **kwargs):
    if not before:
        real(*args, **kwargs)
    Path(flag).touch()
    time.sleep(60)
setattr(place, function, stop)
"""

PHASES = {
    "lock held": ("store", "collect", True),
    "staging made": ("request", "make", True),
    "staged": ("store", "publish", True),
    "before the rename": ("store", "settle", True),
    "after the rename": ("store", "settle", False),
    "published": ("store", "publish", False),
}


@pytest.mark.parametrize("phase", PHASES)
def test_killed_around_the_compiler(phase, children, cache, tmp_path):
    where, function, before = PHASES[phase]
    flag = tmp_path / "stopped"
    child = children.start(STOP + LOAD, where=where, function=function, before=before, flag=str(flag))
    until(flag.exists)
    child.kill()
    assert_recovered(children, cache, expected_before=1 if phase in ("after the rename", "published") else 0)


@pytest.mark.parametrize("phase", ["compile", "link"])
def test_killed_while_a_compiler_runs(phase, children, compiler, cache):
    compiler.hold(phase)
    child = children.start()
    until(lambda: compiler.is_held(phase))
    assert running_below(cache)
    child.kill()
    until(lambda: not running_below(cache), 5, "the end of the compilers")
    compiler.let_go(phase)
    assert_recovered(children, cache, expected_before=0)


def test_killed_while_nvcc_runs(children, csrc, cache):
    """The real one, with its grandchildren, and with units side by side."""
    for name in "ab":
        text = f"#include <cuda_fp16.h>\n#include <string>\nint {name}() {{ return 1; }}\n"
        (csrc / f"{name}.cu").write_text(text)
    code = LOAD.replace('cpp_files=["number.cpp"], cpp_wrappers=[("number", "number")]', 'cuda_files=["a.cu", "b.cu"]')
    code = "from sgljit_core import override_cuda_arch\nwith override_cuda_arch(9, 0):\n" + "".join(
        f"    {line}\n" for line in code.replace("csrc=csrc", "csrc=csrc, header_only=False").splitlines()
    )
    child = children.start(code)
    until(lambda: any("cicc" in line or "cudafe" in line or "cc1plus" in line for line in running_below(cache)))
    child.kill()
    until(lambda: not running_below(cache), 5, "the end of the compilers")


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
        until(lambda: not running_below(cache), 5, "the end of the compilers")
        assert sgljit_core.cache.verify() == []
        assert load(str(i), flags=flags).number() == i
        if i % 10 == 9:
            sgljit_core.cache.prune()
            assert leftovers(cache) == []
    load("last", flags=("-DVALUE=2000",))
    assert leftovers(cache) == []


def assert_recovered(children, cache, expected_before):
    assert len(artifacts(cache)) == expected_before
    assert sgljit_core.cache.verify() == []
    start = time.monotonic()
    assert children.run() == "1\n"
    assert time.monotonic() - start < 20  # nobody waits for the dead
    if expected_before:  # nothing was built, so nothing was collected: the next prune does it
        sgljit_core.cache.prune()
    assert leftovers(cache) == []
    assert len(artifacts(cache)) == 1
    assert sgljit_core.cache.verify() == []
