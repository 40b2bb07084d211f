"""Which compiler ``SGLJIT_CXX`` and ``CXX`` name."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from sgljit_core import errors
from sgljit_core.compilers import toolchain


@pytest.fixture
def cxx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler whose path has a blank, and a ccache, on PATH."""
    for name in ("SGLJIT_CXX", "CXX"):
        monkeypatch.delenv(name, raising=False)
    directory = tmp_path / "my tools"
    directory.mkdir()
    for name in ("my-g++", "ccache"):
        (directory / name).write_text("#!/bin/sh\necho my compiler 1.0\n")
        (directory / name).chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(directory), os.environ["PATH"]]))
    return directory / "my-g++"


@pytest.mark.parametrize("variable", ["SGLJIT_CXX", "CXX"])
@pytest.mark.parametrize("value", ["my-g++", "{}", "ccache my-g++", "/some/where/sccache '{}'"])
def test_a_compiler_alone_or_behind_a_launcher(cxx, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value.format(cxx))
    assert toolchain.find_cxx("a test") == toolchain.Compiler(cxx, "my compiler 1.0")


@pytest.mark.parametrize(
    "value", ["no-such-g++", "my-g++ -O2", "ccache no-such-g++", "ccache my-g++ -m64", "'", "env my-g++"]
)
def test_what_names_no_program_is_quoted_with_what_to_do(cxx, monkeypatch, value):
    monkeypatch.setenv("CXX", "my-g++")
    monkeypatch.setenv("SGLJIT_CXX", value)
    with pytest.raises(errors.ToolchainNotFoundError) as caught:
        toolchain.find_cxx("a test")
    assert f"SGLJIT_CXX={value!r} on PATH={cxx.parent}" in str(caught.value)
    assert "Set SGLJIT_CXX to one program, a C++20 compiler, without flags" in str(caught.value)
    monkeypatch.setenv("SGLJIT_CXX", "")
    monkeypatch.setenv("CXX", value)
    with pytest.raises(errors.ToolchainNotFoundError, match="Set CXX to one program"):
        toolchain.find_cxx("a test")


def test_with_neither_the_usual_names_are_looked_for(cxx, monkeypatch):
    found = toolchain.find_cxx("a test").path
    assert str(found) == next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))))
    monkeypatch.setenv("PATH", str(cxx.parent))
    with pytest.raises(errors.ToolchainNotFoundError) as caught:
        toolchain.find_cxx("a test")
    assert [text.split()[0] for text in caught.value.searched] == ["g++", "clang++", "c++"]
    assert "apt install g++" in str(caught.value)


def test_an_nvcc_on_path_is_found_where_cuda_pathfinder_finds_none(cache, tmp_path, monkeypatch):
    """Such as that of a toolkit which neither an environment variable nor the dynamic loader's configuration names."""
    monkeypatch.delenv("SGLJIT_NVCC", raising=False)
    monkeypatch.setattr("cuda.pathfinder.find_nvidia_binary_utility", lambda name: None)
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho Cuda compilation tools, release 99.0\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", f"{nvcc.parent}{os.pathsep}{os.environ['PATH']}")
    assert toolchain.find_nvcc("a test") == toolchain.Compiler(nvcc, "Cuda compilation tools, release 99.0")


FAKE = """
#include <cstdio>
int main() {{
  std::fputs("called\\n", std::fopen("{log}", "a"));
  std::puts("fake {version}");
}}
"""

ASK = "from sgljit_core.compilers.toolchain import find_cxx\nprint(find_cxx('a test').version)\n"


def test_an_upgraded_compiler_is_noticed(load, children, tmp_path):
    """A memory of a compiler's version lasts only as long as its file stays the same."""
    program, log = tmp_path / "fake-g++", tmp_path / "log"

    def build(version: str) -> None:
        (tmp_path / "fake.cpp").write_text(FAKE.format(log=log, version=version))
        subprocess.run(["g++", tmp_path / "fake.cpp", "-o", tmp_path / "new"], check=True)
        (tmp_path / "new").replace(program)

    def asked() -> tuple[str, int]:
        """The version that a new process finds, and how often the compiler was asked so far."""
        version = children.run(ASK, env={"SGLJIT_CXX": str(program)})
        return version, log.read_text().count("called")

    load()  # there is a cache to remember in
    build("1.0")
    assert asked() == ("fake 1.0\n", 1)
    assert asked() == ("fake 1.0\n", 1)
    build("2.0")
    assert asked() == ("fake 2.0\n", 2)


@pytest.mark.parametrize(
    ("seconds", "script", "text"),
    [
        (0.5, "sleep 60", "--version did not end within 0.5 s"),
        (60, "printf 'caf\\351: no\\n' >&2; exit 3", "--version failed with 3: caf\N{REPLACEMENT CHARACTER}: no"),
        (60, "kill -SEGV $$", "--version failed with 139"),
    ],
)
def test_a_compiler_that_does_not_say_what_it_is_is_an_error_with_what_it_did(cxx, monkeypatch, seconds, script, text):
    monkeypatch.setattr(toolchain, "_SECONDS", seconds)
    cxx.write_text(f"#!/bin/sh\n{script}\n")
    monkeypatch.setenv("SGLJIT_CXX", str(cxx))
    with pytest.raises(errors.ToolchainNotFoundError) as caught:
        toolchain.find_cxx("a test")
    assert f"{cxx} ({text}" in str(caught.value)


def test_what_a_compiler_leaves_running_is_not_waited_for(cxx, monkeypatch):
    cxx.write_text("#!/bin/sh\nsleep 60 &\necho a compiler 2.0\n")
    monkeypatch.setenv("SGLJIT_CXX", str(cxx))
    start = time.monotonic()
    assert toolchain.find_cxx("a test").version == "a compiler 2.0"
    assert time.monotonic() - start < 30


WITHOUT_SIGCHLD = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
from sgljit_core import errors, load_jit
try:
    load_jit("one", cpp_sources="long one() { return 1; }", cpp_wrappers=[("one", "one")])
except errors.ResourceError as error:
    print(error)
"""


def test_where_sigchld_is_ignored_the_error_says_so(children):
    printed = children.run(WITHOUT_SIGCHLD)
    assert "ran, but its exit status is lost: No child processes." in printed
    assert "signal.signal(signal.SIGCHLD, signal.SIG_DFL)" in printed
    assert "ulimit" not in printed
