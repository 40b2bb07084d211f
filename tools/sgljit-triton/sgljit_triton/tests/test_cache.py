"""Compiled kernels in the cache: keys, places, damage, and who else may write one."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch

import sgljit_core
from sgljit_core import errors

from .conftest import write_family

triton = pytest.importorskip("triton", reason="Triton compiles the kernels of these tests; pip install triton")


def build(ops, n=64, alignment=0, **constants):
    with sgljit_core.override_cuda_arch(9, 0):
        x = torch.empty(128, device="meta")[alignment:]
        ops.ADD.bind(**{"BLOCK": 64, **constants}).build(x, None, x, n, 1.5)


def counted(call):
    """Hits of the cache and compiled kernels of a call."""
    before = sgljit_core.stats()
    call()
    after = sgljit_core.stats()
    found = [sum(one.hits.values()) for one in (before, after)]
    made = [one.builds.get("compiled", 0) for one in (before, after)]
    return found[1] - found[0], made[1] - made[0]


def artifacts(cache):
    return sorted(path.parent for path in cache.glob("*/*/*/*/*/manifest.json"))


def in_a_process(place, code, **environment):
    command = [sys.executable, "-c", textwrap.dedent(code)]
    path = os.pathsep.join([str(place), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": path, **environment}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


BUILD = """
    import sgljit_core, torch
    from tri_family.ops import ADD
    with sgljit_core.override_cuda_arch(9, 0):
        x = torch.empty(128, device="meta")
        ADD.bind(BLOCK=64).build(x, None, x, 64, 1.5)
    print(sgljit_core.stats())
"""


def test_a_kernel_is_compiled_once_and_then_found(ops, cache):
    assert counted(lambda: build(ops)) == (0, 1)
    assert counted(lambda: build(ops)) == (1, 0)
    (artifact,) = artifacts(cache)
    assert artifact.relative_to(cache).parts[:3] == ("sm_90a", "tri_family", "add")


def test_what_decides_a_kernel_is_in_its_key(ops, cache):
    build(ops)
    calls = [{"n": 63}, {"n": 1}, {"alignment": 1}, {"BLOCK": 128}, {"num_warps": 8}]
    for number, call in enumerate(calls, 2):
        assert counted(lambda call=call: build(ops, **call)) == (0, 1), call
        assert len(artifacts(cache)) == number
    with sgljit_core.override_cuda_arch(8, 0):
        x = torch.empty(128, device="meta")
        assert counted(lambda: ops.ADD.bind(BLOCK=64).build(x, None, x, 64, 1.5)) == (0, 1)


def test_an_edit_of_what_a_kernel_calls_makes_another_key_and_its_undoing_the_old_one(ops, package):
    build(ops)
    file = package / "kernels" / "common.py"
    text = file.read_text()
    file.write_text(text.replace("x * alpha", "x * alpha + 0"))
    assert counted(lambda: build(ops)) == (0, 1)
    file.write_text(text)
    assert counted(lambda: build(ops)) == (1, 0)
    (package / "kernels" / "other.py").write_text("# not imported\n")
    assert counted(lambda: build(ops)) == (1, 0)


@pytest.mark.slow
def test_a_moved_cache_serves_a_moved_family(ops, package, cache, tmp_path, run):
    build(ops)
    payloads = b"".join(file.read_bytes() for file in cache.rglob("kernel.cubin"))
    for name in (str(tmp_path), str(cache), "site-packages", "/root", "/home", "/tmp"):
        assert name.encode() not in payloads, name
    assert b"tri_family" in payloads  # profilers find the line
    elsewhere = tmp_path / "elsewhere"
    write_family(elsewhere)
    shutil.copytree(cache, tmp_path / "moved")
    shutil.rmtree(cache)
    shutil.rmtree(package.parent)
    variables = {"SGLJIT_CACHE_DIR": str(tmp_path / "moved"), "SGLJIT_JIT": "error"}
    assert "'cache': 1" in run(BUILD, PYTHONPATH=str(elsewhere), **variables)


@pytest.mark.slow
def test_no_variable_and_no_knob_changes_what_is_compiled(ops, cache, tmp_path):
    build(ops)
    (artifact,) = artifacts(cache)
    payload = (artifact / "kernel.cubin").read_bytes()
    changed = {"TRITON_DEFAULT_FP_FUSION": "0", "DISABLE_LLVM_OPT": "1", "TRITON_DISABLE_LINE_INFO": "1",
               "PTXAS_OPTIONS": "-O0", "TRITON_INTERPRET": "1", "PYTHONOPTIMIZE": "2"}  # fmt: skip
    other = tmp_path / "other"
    process = in_a_process(tmp_path / "site", BUILD, SGLJIT_CACHE_DIR=str(other), **changed)
    output = process.communicate()[0]
    assert process.returncode == 0, output
    (again,) = artifacts(other)
    assert again.relative_to(other) == artifact.relative_to(cache)
    assert (again / "kernel.cubin").read_bytes() == payload


def test_tritons_own_cache_is_left_alone(ops, tmp_path, monkeypatch):
    own = tmp_path / "triton-cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(own))
    monkeypatch.setenv("HOME", str(tmp_path))
    build(ops)
    assert not own.exists()
    assert not (tmp_path / ".triton").exists()


@pytest.mark.slow
@pytest.mark.parametrize("file", ["kernel.cubin", "manifest.json"])
def test_a_damaged_artifact_is_never_loaded_and_replaced(ops, cache, file, caplog):
    build(ops)
    (artifact,) = artifacts(cache)
    damaged = artifact / file
    damaged.write_bytes(damaged.read_bytes()[:-40])
    with caplog.at_level(logging.WARNING, logger="sgljit"):
        assert counted(lambda: build(ops)) == (0, 1)
    assert "damaged" in caplog.text
    assert counted(lambda: build(ops)) == (1, 0)


@pytest.mark.slow
def test_an_artifact_of_another_kernel_in_this_place_is_not_launched(ops, cache):
    """Whole by its manifest, and yet of other arguments: what a look-up verifies is not all that a launch needs."""
    build(ops)
    build(ops, n=63)
    from sgljit_triton.build import TritonRequest

    with sgljit_core.override_cuda_arch(9, 0):
        x = torch.empty(128, device="meta")
        specs = [
            ops.ADD.bind(BLOCK=64)._spec(ops.ADD.bind(BLOCK=64).texts(x, None, x, n, 1.5), arch_target())
            for n in (64, 63)
        ]
    requests = [TritonRequest(spec, cache) for spec in specs]
    payload = next((cache / requests[1].location.path).glob("*/kernel.cubin")).read_bytes()
    assert requests[1].load(payload, "add").symbol == "add"
    with pytest.raises(errors.SignatureError, match=r"the artifact of add<.*i32:16, fp32, BLOCK=64> holds add<.*i32, "):
        requests[0].load(payload, "add")
    for broken in (b"", b"\x7fELF", payload[:-9], payload.replace(b'\\"warps\\"', b'\\"warts\\"')):
        with pytest.raises(errors.ArtifactLoadError):
            requests[1].load(broken, "add")


def test_a_carried_kernel_of_a_newer_cuda_than_the_drivers_is_passed_over(ops, package, cache, monkeypatch, caplog):
    from sgljit_triton import build as build_module

    build(ops)
    shutil.copytree(cache, package / "prebuilt")
    shutil.rmtree(cache)
    release = json.loads((artifacts(package / "prebuilt")[0] / "manifest.json").read_text())["manifest"]["toolchain"][
        "ptxas"
    ]
    major = int(release.partition(".")[0])
    for supported, wanted in ((None, (1, 0)), (major, (1, 0)), (major - 1, (0, 1))):
        monkeypatch.setattr(build_module.gpu, "supported_major", lambda supported=supported: supported)
        assert counted(lambda: build(ops)) == wanted, supported
    assert f"assembled by ptxas of CUDA {release}, and the driver supports CUDA {major - 1}; update the" in caplog.text


def test_the_release_of_ptxas_is_that_of_the_target(ops):
    """Triton has a ptxas of its own for Blackwell."""
    from sgljit_triton import compiler

    found = compiler.find("a test")
    for capability, program in ((90, "ptxas"), (100, "ptxas-blackwell")):
        file = found.directory / "backends" / "nvidia" / "bin" / program
        said = subprocess.run([file, "--version"], capture_output=True, text=True, check=True).stdout
        for _ in range(2):  # asked, and remembered
            release = compiler.ptxas_release(found, capability, "a test")
            assert f"release {release}," in said


@pytest.mark.parametrize("text", [None, "#!/bin/sh\nexit 3\n", "#!/bin/sh\necho nothing\n"])
def test_a_ptxas_that_does_not_say_its_release_is_named(tmp_path, text):
    from sgljit_triton import compiler

    program = tmp_path / "backends" / "nvidia" / "bin" / "ptxas"
    program.parent.mkdir(parents=True)
    if text is not None:
        program.write_text(text)
        program.chmod(0o755)
    with pytest.raises(errors.ToolchainNotFoundError, match=rf"Triton's ptxas not found.*a test.*(?s:.*){program}: "):
        compiler.ptxas_release(compiler.Triton(tmp_path, "1.0"), 90, "a test")


def arch_target():
    from sgljit_core.compilers import arch

    return arch.cuda_target()


@pytest.mark.slow
def test_two_processes_compile_a_kernel_once(run, cache):
    code = textwrap.dedent(BUILD)
    output = run(f"import os\nchild = os.fork()\n{code}\nif child: assert os.waitpid(child, 0)[1] == 0\n")
    assert (output.count("Stats("), output.count("'compiled': 1")) == (2, 1), output
    assert len(artifacts(cache)) == 1


def test_threads_compile_a_kernel_once(ops, cache):
    def build_three():
        threads = [threading.Thread(target=build, args=(ops,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert counted(build_three)[1] == 1
    assert len(artifacts(cache)) == 1


def test_a_cache_that_takes_nothing_costs_only_the_sharing(ops, cache, monkeypatch, caplog):
    cache.write_text("a file, and no directory")
    with caplog.at_level(logging.WARNING, logger="sgljit"):
        assert counted(lambda: build(ops)) == (0, 0)
    assert "serves this process alone" in caplog.text


@pytest.fixture
def full_disk(tmp_path):
    """Run code with its cache on a disk of so many KiB; skipped where no file system may be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = 'mount -t tmpfs -o size="$1"k none "$2" && shift 2 && exec "$@"'

    def run(size, code):
        command = ["unshare", "-rm", "sh", "-c", mounted, "sh", str(size), str(place), sys.executable, "-c"]
        path = os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)])
        env = {**os.environ, "PYTHONPATH": path, "SGLJIT_CACHE_DIR": str(place / "cache")}
        done = subprocess.run([*command, textwrap.dedent(code)], env=env, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    try:
        is_mounted = run(64, "pass")[0] == 0
    except OSError:
        is_mounted = False
    if not is_mounted:
        pytest.skip("no file system may be mounted here")
    return run


@pytest.mark.slow
# KiB with which the disk is full before a compiler starts, while Triton or ptxas writes, and when the result is kept.
@pytest.mark.parametrize("size", [*(pytest.param(size, marks=pytest.mark.slow) for size in (4, 32, 56, 76)), 84])
def test_a_full_disk_costs_only_the_sharing(package, full_disk, size):
    status, output, log = full_disk(size, BUILD)
    assert status == 0, log
    assert "'private': 1" in output
    assert "o space left on" in log
    assert "serves this process alone" in log


@pytest.mark.slow
def test_a_disk_with_room_keeps_the_kernel(package, full_disk):
    status, output, log = full_disk(2048, BUILD)
    assert (status, log) == (0, "")
    assert "'compiled': 1" in output


@pytest.mark.slow
def test_an_upgrade_of_triton_compiles_anew_beside_the_old_and_a_downgrade_finds_those(package, cache, tmp_path):
    """The other release is the same code under another number."""
    installed = Path(triton.__file__).parent
    other = tmp_path / "upgraded" / "triton"
    other.mkdir(parents=True)
    for one in installed.iterdir():
        (other / one.name).symlink_to(one)
    (other / "__init__.py").unlink()
    text = (installed / "__init__.py").read_text()
    (other / "__init__.py").write_text(text.replace(f"'{triton.__version__}'", "'99.1.0'"))

    def in_releases(*upgraded, **variables):
        outputs = []
        for one in upgraded:
            path = [str(other.parent)] if one else []
            code = f"import sys; sys.path[:0] = {path!r}\n{textwrap.dedent(BUILD)}"
            process = in_a_process(package.parent, code, **variables)
            outputs.append(process.communicate()[0])
            assert process.returncode == 0, outputs[-1]
        return ["compiled" if "'compiled': 1" in text else "hit" for text in outputs]

    assert in_releases(False, True, False, True) == ["compiled", "compiled", "hit", "hit"]
    old, new = sorted(artifacts(cache), key=lambda one: b"99.1.0" in (one / "kernel.cubin").read_bytes())
    assert b"99.1.0" in (new / "kernel.cubin").read_bytes()
    assert old.parent == new.parent
    # A wheel that was built with the old one serves beside the new one.
    shutil.rmtree(new)
    shutil.copytree(cache, package / "prebuilt")
    assert in_releases(True, SGLJIT_CACHE_DIR=str(tmp_path / "empty"), SGLJIT_JIT="error") == ["hit"]


def test_two_releases_of_triton_stand_side_by_side(ops, cache, monkeypatch):
    from sgljit_triton import compiler

    build(ops)
    found = compiler.find("a test")
    monkeypatch.setattr(compiler, "find", lambda needed_for: found._replace(version="9.9.9 (1 bytes)"))
    assert counted(lambda: build(ops)) == (0, 1)
    first, second = artifacts(cache)
    assert first.parent == second.parent
    assert counted(lambda: build(ops)) == (1, 0)
    versions = {
        json.loads((one / "manifest.json").read_text())["manifest"]["toolchain"]["triton"] for one in (first, second)
    }
    assert versions == {found.version, "9.9.9 (1 bytes)"}
    monkeypatch.undo()


def test_without_triton_what_the_cache_has_is_used_and_the_rest_is_an_error(ops, cache, monkeypatch):
    from sgljit_triton import compiler

    build(ops)

    def find(needed_for):
        raise errors.ToolchainNotFoundError("Triton", needed_for=needed_for, searched=["here"], remedy=compiler.REMEDY)

    monkeypatch.setattr(compiler, "find", find)
    assert counted(lambda: build(ops)) == (1, 0)
    with pytest.raises(errors.ToolchainNotFoundError, match=r"Triton not found.*add<.*i32, fp32, BLOCK=64>") as raised:
        build(ops, n=63)
    assert 'pip install "sgljit-triton[compiler]"' in str(raised.value)


def test_an_error_of_triton_names_the_kernel_and_the_line(ops, package):
    file = package / "kernels" / "add.py"
    file.write_text(file.read_text().replace("tl.load(x + i, mask=i < n)", "tl.load(x + i, mask=i < m)"))
    with pytest.raises(errors.CompileError) as raised:
        build(ops)
    text = str(raised.value)
    assert "tri_family.add<*fp32:16, =None, *fp32:16, i32:16, fp32, BLOCK=64> for sm_90a" in text
    assert "does not compile: CompilationError: at " in text
    assert "m is not defined" in text


def test_an_architecture_that_triton_has_not_is_refused(ops):
    x = torch.empty(128, device="meta")
    bound = ops.ADD.bind(BLOCK=64)
    from sgljit_core.compilers import arch

    for target in ("9.0f", "sm_100f"):
        with pytest.raises(errors.ToolchainNotFoundError, match="Name the architecture without a suffix"):
            bound._spec(bound.texts(x, None, x, 64, 1.5), arch.parse_cuda_target(target, "a test"))
