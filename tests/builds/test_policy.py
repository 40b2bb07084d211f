"""Forbidding to compile, observing that it happens, and compiling several at once."""

from __future__ import annotations

import contextvars
import logging
import threading
import time

import pytest
from kit import LOAD, until

from sgljit_core import errors, freeze, override_cuda_arch, parallel_compile
from sgljit_core.builds import policy
from sgljit_core.machine import jobs
from sgljit_tools.testing import build_variant


@pytest.fixture(autouse=True)
def thawed():
    """Undo a freeze by tests of other files."""
    policy._frozen.clear()
    yield
    policy._frozen.clear()


def test_a_frozen_process_loads_hits_and_refuses_misses(load, children):
    children.run(markers=("warm",))
    load("nearby", flags=("-DVALUE=2",))
    freeze()
    assert load("warm").number() == 1
    with pytest.raises(errors.CompileForbiddenError) as caught:
        load("miss", "4096", flags=("-DVALUE=3",))
    text = str(caught.value)
    assert text.startswith("number<miss, 4096> for cpu-")
    assert 'is not in the cache, and freeze("error") forbids compiling it' in text
    assert "flag -DVALUE=3 added (cxx)" in text
    assert "Build it ahead" in text
    freeze("on")
    assert load("miss", "4096", flags=("-DVALUE=3",)).number() == 3


def test_the_environment_forbids_too_and_freeze_has_the_last_word(load, monkeypatch):
    monkeypatch.setenv("SGLJIT_JIT", "error")
    with pytest.raises(errors.CompileForbiddenError, match="SGLJIT_JIT=error forbids"):
        load()
    freeze("on")
    assert load().number() == 1


def test_warn_compiles_and_says_so(load, monkeypatch, caplog):
    monkeypatch.setenv("SGLJIT_JIT", "warn")
    assert load().number() == 1
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert any("number for cpu-" in record.getMessage() and "a miss" in record.getMessage() for record in warned)


@pytest.mark.parametrize("value", ["off", "never", "2"])
def test_a_mode_that_is_none_is_refused(load, monkeypatch, value):
    with pytest.raises(ValueError, match="freeze"):
        freeze(value)
    monkeypatch.setenv("SGLJIT_JIT", value)
    with pytest.raises(errors.ConfigError, match="SGLJIT_JIT must be one of on, warn, error"):
        load()


def test_a_message_names_the_plugin(children, tmp_path):
    """With a family, the remedy is a command, and the plugin's name and version are there."""
    import plugin_on_disk

    package = plugin_on_disk.install(tmp_path / "site", "sgljit-some", "some")
    (package / "csrc" / "number.cpp").write_text("int number() { return 1; }\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
    code += "from sgljit_core.plugins import discovery\ndiscovery.rescan()\n"
    code += LOAD.replace("csrc=csrc", "csrc=csrc, family='some'")
    child = children.start(code, csrc=str(package / "csrc"), env={"SGLJIT_JIT": "error"})
    child.end()
    assert "some.number for cpu-" in child.output
    assert "of sgljit-some 1.2.3 is not in the cache" in child.output
    assert "`sgljit cache build some`" in child.output


def test_forbidden_for_a_gpu_the_text_names_the_architecture_to_build_and_those_there_are(tmp_path, cache, monkeypatch):
    import torch

    from sgljit_core import KernelFamily

    (tmp_path / "frozen_family" / "csrc").mkdir(parents=True)
    (tmp_path / "frozen_family" / "__init__.py").touch()
    (tmp_path / "frozen_family" / "csrc" / "fill.cuh").write_text(
        "template <typename T> __global__ void fill(T* p) {}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    family = KernelFamily("frozen", "frozen_family")
    with override_cuda_arch(8, 0):
        build_variant(family, "fill.cuh", "fill", torch.float32)
    freeze()
    for arch, option in (((9, 0), "sm_90a"), ((8, 6), "sm_86"), ((10, 0), "sm_100a")):
        with override_cuda_arch(*arch), pytest.raises(errors.CompileForbiddenError) as caught:
            build_variant(family, "fill.cuh", "fill", torch.float32)
        assert f"with `sgljit cache build frozen --cuda-arch {option}`" in str(caught.value)
        assert "no artifact of this module and target was ever built here (there are some for sm_80)" in str(
            caught.value
        )


def test_a_miss_during_a_capture_raises(load, monkeypatch):
    """The real thing is a test on a GPU; here the answer of torch is made up."""
    import torch

    load("hit")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert load("hit").number() == 1
    with pytest.raises(errors.CaptureError, match=r"number<miss> .*while a CUDA stream is capturing a graph"):
        load("miss", flags=("-DVALUE=2",))


def test_log_records_carry_their_data(load, caplog):
    caplog.set_level(logging.INFO, logger="sgljit")
    load("logged", flags=("-DVALUE=4",))
    events = {record.sgljit["event"]: record.sgljit for record in caplog.records if hasattr(record, "sgljit")}
    assert events["build_started"]["module"] == "number"
    assert events["build_finished"]["seconds"] > 0
    assert "miss" in events


OBSERVER = """
from sgljit_core import hookimpl

@hookimpl
def sgljit_build_started(build):
    print("started", build.label)

@hookimpl
def sgljit_build_finished(build, seconds, error):
    print("finished", build.label, 0 < seconds < 60, type(error).__name__)
"""


def test_a_plugin_observes_builds_and_no_hits(children, csrc, tmp_path):
    import plugin_on_disk

    plugin_on_disk.install(tmp_path / "site", "sgljit-observer", "observer", plugin=OBSERVER, group="sgljit.extensions")
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n" + LOAD
    lines = children.run(code).splitlines()
    assert [line.split()[0] for line in lines] == ["started", "finished", "1"]
    assert lines[1].startswith("finished number for cpu-")
    assert lines[1].endswith("True NoneType")
    assert children.run(code) == "1\n"
    (csrc / "value.h").write_text("#error no\n")
    child = children.start(code)
    child.end()
    assert "True CompileError" in child.output


def test_an_observer_that_raises_stops_no_build_and_no_other_observer(load, monkeypatch):
    from sgljit_core import hookimpl, log
    from sgljit_core.plugins import hooks

    class Broken:
        @hookimpl
        def sgljit_build_started(self, build):
            raise RuntimeError("broken observer")

        sgljit_build_finished = sgljit_build_started

    class Whole:
        @hookimpl
        def sgljit_build_started(self):
            heard.append("started")

        @hookimpl
        def sgljit_build_finished(self, outcome):
            heard.append(outcome)

    monkeypatch.setattr(log, "once", lambda event, about, text, **data: said.append(text))
    said: list[str] = []
    heard: list[str] = []
    hooks.load_plugins()
    manager = hooks.manager()
    names = [manager.register(Whole(), "whole"), manager.register(Broken(), "broken")]
    try:
        assert load("observed", flags=("-DVALUE=5",)).number() == 5
    finally:
        for name in names:
            manager.unregister(name=name)
    assert heard == ["started", "compiled"]
    assert said == [f"broken: its sgljit_build_{step} raised RuntimeError: broken observer" for step in _STEPS]


_STEPS = ("started", "finished")


@pytest.mark.parametrize(
    "stream",
    ["None", "type('Tee', (), {'write': len, 'flush': bool})()", "open(os.devnull, 'w'); sys.stderr.close()"],
)
def test_a_stream_that_is_no_terminal_and_cannot_say_so_stops_no_build(children, stream):
    assert children.run(f"import os, sys\nsys.stderr = {stream}\n{LOAD}") == "1\n"


def test_a_line_on_a_terminal_after_a_second(children, compiler):
    """On a real terminal: a pty."""
    import os
    import pty

    controller, terminal = pty.openpty()
    code = (
        "import os, sys\nfd = os.open(tty, os.O_RDWR)\nos.dup2(fd, 2)\nsys.stderr = os.fdopen(2, 'w', closefd=False)\n"
    )
    compiler.hold()
    child = children.start(code + LOAD, tty=os.ttyname(terminal), env={"TERM": "xterm"})
    text = ""
    deadline = time.monotonic() + 60
    while "compiling number for cpu" not in text and time.monotonic() < deadline:
        text += os.read(controller, 4096).decode(errors="replace")
    compiler.let_go()
    child.end()
    os.close(controller)
    os.close(terminal)
    assert "compiling number for cpu" in text
    assert child.output == "1\n"


def test_builders_run_side_by_side_in_the_callers_context(load):
    mine = contextvars.ContextVar("mine", default=0)
    mine.set(7)
    from sgljit_core.compilers import arch

    with override_cuda_arch(8, 0):
        results = parallel_compile([lambda i=i: (i, mine.get(), arch.cuda_target().name) for i in range(5)])
    assert results == [(i, 7, "sm_80") for i in range(5)]
    modules = parallel_compile([lambda i=i: load(str(i), flags=(f"-DVALUE={i}",)) for i in range(4)])
    assert [module.number() for module in modules] == [0, 1, 2, 3]
    assert parallel_compile([]) == []


def test_failures_are_collected_and_the_rest_is_built(load, csrc):
    (csrc / "bad.cpp").write_text("int number() { return nonsense; }\n")
    with pytest.raises(errors.ParallelCompileError) as caught:
        parallel_compile([lambda: load("good"), lambda: load("bad", cpp_files=["bad.cpp"])])
    (failure,) = caught.value.failures
    assert isinstance(failure, errors.CompileError)
    assert "1 of 2 builds failed" in str(caught.value)
    assert "nonsense" in str(caught.value)
    freeze()
    assert load("good").number() == 1


JOBS = """
from sgljit_core import load_jit, parallel_compile
def build(i):
    return lambda: load_jit("number", str(i), cpp_files=["number.cpp"], cpp_wrappers=[("number", "number")], csrc=csrc,
                            extra_cflags=[f"-DVALUE={i}"])
parallel_compile([build(i) for i in range(6)])
"""


def test_builds_share_the_limit_of_compilers(children, compiler, monkeypatch):
    """Six builds side by side, one compiler at a time; a link counts as none."""
    monkeypatch.setenv("SGLJIT_JOBS", "1")
    log = compiler.directory / "log"
    text = compiler.path.read_text().replace('exec "', '"')  # not replaced, so that its end is seen
    text = text.replace('*" --version "*) ', '*" --version "*) exec ')
    text = text.replace('echo "', f'echo "start $*" >> {log}; echo "')
    text += f'status=$?\nsleep 0.05\necho "end $*" >> {log}\nexit $status\n'
    compiler.path.write_text(text)
    children.run(JOBS)
    events = [line.split()[0] for line in log.read_text().splitlines() if " -c " in line]
    assert events == ["start", "end"] * 6


def test_a_free_slot_is_waited_for(cache, monkeypatch):
    monkeypatch.setenv("SGLJIT_JOBS", "1")
    entered = threading.Event()

    def second():
        with jobs.running(cuda=False):
            entered.set()

    with jobs.running(cuda=False):
        thread = threading.Thread(target=second)
        thread.start()
        assert not entered.wait(0.2)
    thread.join()
    assert entered.is_set()


def test_who_is_cancelled_does_not_wait_for_a_slot(cache, monkeypatch):
    """A build that Ctrl-C ends must not first wait until another is done."""
    monkeypatch.setenv("SGLJIT_JOBS", "1")
    cancelled = threading.Event()
    ended = threading.Event()

    def second():
        with jobs.running(cuda=False, is_cancelled=cancelled.is_set):
            ended.set()

    with jobs.running(cuda=False):
        thread = threading.Thread(target=second)
        thread.start()
        assert not ended.wait(0.2)
        cancelled.set()
        assert ended.wait(60)
        thread.join()


def _machine(tmp_path, cgroup, **files):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 64000000 kB\nMemAvailable:   33554432 kB\n")
    for name, text in files.items():
        file = tmp_path / "cg" / name.replace("__", "/").replace("_DOT_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "cg", tmp_path / "proc"


def test_the_limit_of_a_cgroup_of_version_2_and_of_those_above(tmp_path):
    cgroups, proc = _machine(
        tmp_path,
        "0::/outer/inner\n",
        outer__memory_DOT_max=str(8 << 30),
        outer__memory_DOT_current=str(6 << 30),
        outer__memory_DOT_stat=f"anon 1\ninactive_file {1 << 30}\n",
        outer__inner__memory_DOT_max="max\n",
        outer__inner__memory_DOT_current="5",
        outer__inner__cpu_DOT_max="150000 100000\n",
    )
    assert jobs.available_memory(cgroups, proc) == 3 << 30
    assert jobs.available_cores(cgroups, proc) == 1


def test_without_cgroups_the_kernel_is_asked(tmp_path):
    cgroups, proc = _machine(tmp_path, "")
    assert jobs.available_memory(cgroups, proc) == 32 << 30


def test_the_limit_is_never_below_one(monkeypatch):
    monkeypatch.setattr(jobs, "available_memory", lambda: 0)
    monkeypatch.delenv("SGLJIT_JOBS", raising=False)
    assert jobs.capacity(jobs.NVCC_MEMORY) == 1
    monkeypatch.setenv("SGLJIT_JOBS", "5")
    assert jobs.capacity(jobs.NVCC_MEMORY) == 5


def test_a_real_limit_of_memory(children, tmp_path):
    """A process in a cgroup with 3 GB counts three g++ at most and one nvcc."""
    import contextlib
    import os
    from pathlib import Path

    if not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        pytest.skip("cgroups of version 2 are not mounted here")
    group = Path("/sys/fs/cgroup") / f"sgljit-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.max").write_text(str(3 << 30))
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    code = "import os\nPath(procs).write_text(str(os.getpid()))\nfrom sgljit_core.machine import jobs\n"
    code += "print(jobs.available_memory() <= 3 << 30, jobs.capacity(jobs.NVCC_MEMORY))\n"
    try:
        assert children.run(code, procs=str(group / "cgroup.procs")) == "True 1\n"
    finally:
        with contextlib.suppress(OSError):
            until(lambda: not (group / "cgroup.procs").read_text(), 5)
            group.rmdir()


def test_failures_of_one_text_are_told_once_with_their_number():
    failures = [errors.ConfigError("no device"), errors.ConfigError("no device\nmore"), ValueError("else")]
    error = errors.ParallelCompileError(failures, 5)
    assert str(error) == "3 of 5 builds failed:\n  - ConfigError: no device (2 times)\n  - ValueError: else"
    assert error.failures == tuple(failures)


def test_failures_of_one_cause_are_told_once_and_the_first_in_whole(tmp_path):
    def no_compiler(build):
        return errors.ToolchainNotFoundError("g++", needed_for=build, searched=["PATH"], remedy="apt install g++")

    def wrong(build, first_error):
        return errors.CompileError(
            build=build, first_error=first_error, command="nvrtc", log="log", build_directory=tmp_path
        )

    failures = [no_compiler("one"), no_compiler("two"), wrong("three", "x"), wrong("four", "x"), wrong("five", "y")]
    assert str(errors.ParallelCompileError(failures, 9)) == (
        "5 of 9 builds failed:\n"
        "  - ToolchainNotFoundError: g++ not found; it is needed to compile one. (2 times)\n"
        "  - CompileError: three does not compile: x (2 times)\n"
        "  - CompileError: five does not compile: y\n"
        f"The first in full:\n{failures[0]}"
    )
    assert str(failures[0]).endswith("Looked in:\n  - PATH\napt install g++")
