"""No thread, no process, no descriptor, no memory: a build goes on with less, or says what is missing."""

from __future__ import annotations

import pytest

LOAD = """
from sgljit_core import errors, load_jit, parallel_compile
def load(number=1):
    return load_jit("number", cpp_files=["number.cpp"], cpp_wrappers=[("number", "number")], csrc=csrc,
                    extra_cflags=[f"-DVALUE={number}"])
"""
NO_THREADS = """
import threading
real, left = threading.Thread.start, spare
def start(self):
    global left
    left -= 1
    if left < 0:
        raise RuntimeError("can't start new thread")
    real(self)
threading.Thread.start = start
"""


@pytest.mark.parametrize("spare", [0, 1, 2])
def test_without_threads_modules_are_built_one_after_the_other(children, spare):
    code = LOAD + NO_THREADS + "print([module.number() for module in parallel_compile([load, lambda: load(2)])])"
    assert children.run(code, spare=spare) == "[1, 2]\n"


def test_no_process_is_an_error_with_the_cause(children):
    code = """
import errno, subprocess
load()
def fails(*args, **kwargs):
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
real, subprocess.Popen = subprocess.Popen, fails
try:
    load(2)
except errors.ResourceError as error:
    print(error)
subprocess.Popen = real
print(load(2).number())
"""
    text, number = children.run(LOAD + code).splitlines()
    assert "g++ cannot be run: Resource temporarily unavailable. The next call tries again." in text
    assert "ulimit -u" in text
    assert number == "2"


NO_DESCRIPTORS = """
import os, resource
before = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), before[1]))
filled = []
while True:
    try:
        filled.append(os.open("/", os.O_RDONLY))
    except OSError:
        break
"""
AGAIN = """
for descriptor in filled:
    os.close(descriptor)
resource.setrlimit(resource.RLIMIT_NOFILE, before)
"""


def test_no_descriptor_at_first_use_is_an_error_with_the_cause_and_is_forgotten(children):
    use = """
try:
    load()
except errors.ResourceError as error:
    print(error)
"""
    text, number = children.run(LOAD + NO_DESCRIPTORS + use + AGAIN + "print(load().number())").splitlines()
    assert "a kernel cannot be looked for or made: Too many open files. The next call tries again." in text
    assert number == "1"


def test_without_a_descriptor_the_installed_families_are_unknown_not_none(children):
    """importlib_metadata takes a directory that it cannot list for an empty one, and remembers that."""
    use = """
try:
    print(list(ops))
except errors.ResourceError as error:
    print(error)
"""
    text, names = children.run(
        "from sgljit_core import errors, ops\n" + NO_DESCRIPTORS + use + AGAIN + "print('norm' in list(ops))"
    ).splitlines()
    assert "the installed packages cannot be looked through: Too many open files." in text
    assert names == "True"


@pytest.mark.parametrize("error", ["MemoryError", "KeyboardInterrupt", "SystemExit"])
@pytest.mark.parametrize("spare", [0, 9])
def test_what_ends_a_process_stays_what_it_is(children, error, spare):
    code = f"""
def raises():
    raise {error}("now")
try:
    parallel_compile([raises, load, load])
except {error} as caught:
    print(repr(caught))
"""
    assert children.run(LOAD + NO_THREADS + code, spare=spare).splitlines()[-1] == f"{error}('now')"
