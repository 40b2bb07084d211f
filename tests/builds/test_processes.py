"""Several processes, several threads, one cache."""

from __future__ import annotations

import os
import re
import signal
import threading
import time

import pytest
from kit import LOAD, artifacts, leftovers, until

from sgljit_core import load_jit


def test_eight_processes_on_a_cold_cache_compile_once(children, compiler, cache):
    compiler.hold()
    started = [children.start() for _ in range(8)]
    until(compiler.is_held)
    time.sleep(0.5)  # the others arrive
    compiler.let_go()
    assert [child.join() for child in started] == ["1\n"] * 8
    assert compiler.calls("compile") == 1
    assert len(artifacts(cache)) == 1
    assert leftovers(cache) == []


def test_a_process_may_have_any_name(children, compiler):
    """The kernel cuts names at 15 bytes, within a character, and a build looks at the owners of others."""
    code = f"import ctypes\nctypes.CDLL(None).prctl(15, {'vllm-模型服务'.encode()[:15]!r}, 0, 0, 0)\n{LOAD}"
    compiler.hold()
    named = children.start(code)
    until(compiler.is_held)
    assert children.run(markers=("other",), flags=("-DVALUE=2",), env={"SGLJIT_CXX": "g++"}) == "2\n"
    compiler.let_go()
    assert named.join() == "1\n"


def test_two_variants_do_not_wait_for_each_other(children, compiler):
    compiler.hold()
    slow = children.start(markers=("slow",), flags=("-DVALUE=2",))
    until(compiler.is_held)
    compiler.let_go()
    compiler.hold("link")
    until(lambda: compiler.is_held("link"))
    # The first is held before its link for good; the second needs the same phase, so give it another compiler.
    fast = children.start(markers=("fast",), flags=("-DVALUE=3",), env={"SGLJIT_CXX": "g++"})
    assert fast.join() == "3\n"
    assert slow.process.is_alive()
    compiler.let_go("link")
    assert slow.join() == "2\n"


def test_a_waiter_says_after_two_seconds_who_holds_the_lock_and_since_when(children, compiler):
    compiler.hold()
    builder = children.start()
    until(compiler.is_held)
    start = time.monotonic()
    waiter = children.start()
    report = rf"waiting for process {builder.process.pid} on \S+ \(building number for cpu-\S+ since \d\d:\d\d:\d\d\)"
    until(lambda: re.search(report, waiter.output), what="the report")
    assert time.monotonic() - start > 1.9
    assert "1" not in waiter.output.split()
    compiler.let_go()
    assert builder.join() == "1\n"
    assert waiter.join().endswith("1\n")
    assert compiler.calls() == 1


WAIT_FOR = "from sgljit_core.builds import making\nmaking.LOCK_SECONDS = {seconds}\n"


def test_after_the_deadline_a_waiter_compiles_itself(children, compiler, cache):
    compiler.hold()
    builder = children.start()
    until(compiler.is_held)
    waiter = children.start(WAIT_FOR.format(seconds=0.3) + LOAD, env={"SGLJIT_CXX": "g++"})
    # Another compiler path, so that it is not held; g++ tells the same version, so that the key is the same.
    assert waiter.join().endswith("1\n")
    assert f"process {builder.process.pid} on" in waiter.output
    assert "has held the lock of number" in waiter.output
    assert "for more than 0.3 s; compiling it here as well" in waiter.output
    compiler.let_go()
    assert builder.join() == "1\n"
    assert len(artifacts(cache)) == 1


def test_a_waiter_takes_what_is_published_while_another_holds_the_lock(children, compiler):
    """So waiters that look at the same moment do not keep each other out."""
    compiler.hold()
    builder = children.start()
    until(compiler.is_held)
    waiter = children.start()
    children.run(WAIT_FOR.format(seconds=0.3) + LOAD, env={"SGLJIT_CXX": "g++"})  # it compiles and publishes
    assert waiter.join().endswith("1\n")
    assert builder.process.is_alive()
    compiler.let_go()
    assert builder.join() == "1\n"
    assert compiler.calls() == 1


def test_threads_that_want_the_same_module_get_the_same_object(load, compiler):
    found = []
    threads = [threading.Thread(target=lambda: found.append(load())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(module is found[0] for module in found)
    assert compiler.calls() == 1


FORK = """
import os, threading, time
from sgljit_core import load_jit
def load():
    return load_jit("number", cpp_files=["number.cpp"], cpp_wrappers=[("number", "number")], csrc=csrc)
thread = threading.Thread(target=load)
thread.start()
while not Path(holding).exists():
    time.sleep(0.01)
pid = os.fork()                      # the other thread holds the thread lock and the file lock
if pid == 0:
    print("child", load().number(), flush=True)
    os._exit(0)
time.sleep(0.3)
Path(hold).unlink()
thread.join()
_, status = os.waitpid(pid, 0)
print("parent", load().number(), status)
"""


def test_a_fork_while_another_thread_builds(children, compiler):
    compiler.hold()
    paths = {"hold": str(compiler.directory / "hold-compile"), "holding": str(compiler.directory / "holding-compile")}
    assert children.run(FORK, **paths) == "child 1\nparent 1 0\n"
    assert compiler.calls() == 1


STARTING = """
import os, subprocess, threading, time
from sgljit_core import load_jit
order, popen, is_starting = [], subprocess.Popen, threading.Event()
def slowly(*args, **kwargs):
    is_starting.set()
    time.sleep(0.3)
    process = popen(*args, **kwargs)
    order.append("started")
    return process
subprocess.Popen = slowly
load = lambda: load_jit("number", cpp_files=["number.cpp"], cpp_wrappers=[("number", "number")], csrc=csrc)
thread = threading.Thread(target=load)
thread.start()
is_starting.wait()
pid = os.fork()
if pid == 0:
    os._exit(load().number())
print(order[0], os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
thread.join()
"""


def test_a_fork_waits_until_a_compiler_has_started(children):
    """The child would hold the pipe by which its parent learns that, and wait for the build itself."""
    assert children.run(STARTING) == "started 1\n"


INTERRUPTED = """
import os, signal
from sgljit_core import load_jit
def load(value):
    return load_jit("number", str(value), cpp_files=["number.cpp"], cpp_wrappers=[("number", "number")], csrc=csrc,
                    extra_cflags=[f"-DVALUE={value}"])
found = []
def handler(*_):
    Path(hold).unlink(missing_ok=True)  # the first compiler ends; its thread still has the lock of the build
    found[:] = [load(value).number() for value in (1, 2)]
signal.signal(signal.SIGUSR1, handler)
print(load(1).number(), found, load(1) is load(1))
"""


@pytest.mark.parametrize("phase", ["compile", "link"])
def test_a_first_use_in_a_signals_handler_does_not_wait_for_the_build_that_it_interrupts(children, compiler, phase):
    compiler.hold(phase)
    hold = compiler.directory / f"hold-{phase}"
    child = children.start(INTERRUPTED, env={"SGLJIT_JOBS": "1"}, hold=str(hold))
    until(lambda: compiler.is_held(phase))
    while hold.exists():  # Python sees a signal that comes just before a wait when the wait ends, or with the next one
        os.kill(child.process.pid, signal.SIGUSR1)
        time.sleep(0.1)
    assert child.join() == "1 [1, 2] True\n"


ORPHAN = """
import os, threading, time
from sgljit_core import load_jit
threading.Thread(target=exec, args=(LOAD, globals()), daemon=True).start()
while not Path(holding).exists():
    time.sleep(0.01)
if os.fork() == 0:
    time.sleep(90)
time.sleep(90)
"""


def test_a_forked_child_does_not_keep_the_lock_of_its_killed_parent(children, compiler):
    """A data loader's workers outlive their parent for a while."""
    compiler.hold()
    builder = children.start(ORPHAN, LOAD=LOAD, holding=str(compiler.directory / "holding-compile"))
    until(compiler.is_held)
    time.sleep(0.3)
    builder.kill()
    compiler.let_go()
    start = time.monotonic()
    assert children.run(WAIT_FOR.format(seconds=80) + LOAD) == "1\n"
    assert time.monotonic() - start < 60


TWO_TARGETS = """
from sgljit_core import load_jit, override_cuda_arch
source = dict(cuda_files=["empty.cu"], cuda_wrappers=[("arch", "arch")], csrc=csrc)
with override_cuda_arch(8, 0):
    old = load_jit("arch", **source)
with override_cuda_arch(9, 0):
    new = load_jit("arch", **source)
print(old.arch(), new.arch())
with override_cuda_arch(8, 0):
    print(load_jit("arch", **source) is old)
"""


@pytest.mark.slow
def test_two_targets_in_one_process(children, csrc, cache):
    (csrc / "empty.cu").write_text("int arch() { return SGL_CUDA_ARCH; }\n")
    assert children.run(TWO_TARGETS) == "800 900\nTrue\n"
    assert {path.parents[3].name for path in artifacts(cache)} == {"sm_80", "sm_90a"}


def test_the_same_marker_with_another_source_does_not_collide(load, csrc, cache):
    one = load("marker")
    (csrc / "value.h").write_text("#define VALUE 2\n")
    two = load("marker")
    assert (one.number(), two.number()) == (1, 2)
    assert len(artifacts(cache)) == 2


REUSED = """
import os
from pathlib import Path
from sgljit_core import load_jit
build = dict(cpp_files=["number.cpp"], cpp_wrappers=[("number", "number")], csrc=csrc)
modules = []
for value in range(6):
    modules.append(load_jit("number", str(value), extra_cflags=[f"-DVALUE={value}"], **build))
    for link in list(Path("/proc/self/fd").iterdir()):
        if link.is_symlink() and "memfd:sgljit" in os.readlink(link):
            os.close(int(link.name))
print([module.number() for module in modules])
print(Path("/proc/self/maps").read_text().count("memfd:sgljit:number") >= 6)  # what a profiler shows
"""


def test_libraries_whose_descriptors_somebody_closes_stay_apart(children):
    """The C library's loader takes libraries of one name for one, and each is loaded through the lowest descriptor."""
    assert children.run(REUSED) == "[0, 1, 2, 3, 4, 5]\nTrue\n"


FIRST_ERROR = """
import os
from sgljit_core import load_jit
module = load_jit("number", cpp_files=["number.cpp"], cpp_wrappers=[("number", "number")], csrc=csrc)
empty = [os.open(f"{csrc}/empty-{i}", os.O_CREAT | os.O_RDWR) for i in range(32)]
try:
    module.number("too many")
except TypeError as error:
    print(error)
"""


def test_the_first_error_of_a_process_reads_libraries_by_name_and_finds_them(children):
    """tvm-ffi prints a backtrace into it; an empty file under the name of a library would be a SIGBUS."""
    assert "number(): expected 0 arguments, got 1" in children.run(FIRST_ERROR)


DAMAGE = """
import os
(file,) = Path(os.environ["SGLJIT_CACHE_DIR"]).glob("[!.]*/**/module.so")
os.truncate(file, 0)
print(module.number())
file.unlink()
print(module.number())
"""


@pytest.mark.parametrize("is_hit", [False, True])
def test_an_artifact_that_is_changed_after_loading_does_not_matter(children, compiler, is_hit):
    """A process that has mapped the file would be killed at the next call."""
    if is_hit:
        assert children.run() == "1\n"
    assert children.run(LOAD + DAMAGE) == "1\n1\n1\n"
    assert compiler.calls() == 1


@pytest.mark.gpu
def test_a_miss_while_a_stream_captures_raises_and_a_hit_works(load):
    import torch

    from sgljit_core import errors

    hit = load("hit")
    graph = torch.cuda.CUDAGraph()
    x = torch.zeros(1, device="cuda")
    with torch.cuda.graph(graph):
        x += hit.number()
        with pytest.raises(errors.CaptureError, match=r"number<miss> .* while a CUDA stream is capturing"):
            load("miss", flags=("-DVALUE=9",))


def test_a_build_directory_is_a_root_of_its_own(csrc, cache, tmp_path):
    wrappers = [("number", "number")]
    root = tmp_path / "own"
    load_jit("number", cpp_files=["number.cpp"], cpp_wrappers=wrappers, csrc=csrc, build_directory=root)
    assert len(artifacts(root)) == 1
    assert artifacts(cache) == []
