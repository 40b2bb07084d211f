"""``sgljit wheel``: a plugin's wheel that carries what its users would have to compile."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import isolated
import pytest

from sgljit_tools.cli import wheel

USE = """
import torch
from sgljit_core import CppType, ops, override_cuda_arch
from sgljit_core import make_cpp_args, paths
from sgljit_core.jit import kernels
from sgljit_silu_and_mul.plugin import FAMILY
out = torch.empty(2, 256)
ops["silu_and_mul"].silu_and_mul(torch.full((2, 512), 2.0), out)
print(round(out.sum().item()))
with override_cuda_arch(9, 0):
    kernel = {kernel} + "<" + str(make_cpp_args(CppType({functor}), *{numbers})) + ">"
    sources = kernels.Sources(FAMILY.name, FAMILY.csrc, paths.cache_root())
    kernels.build_kernel(sources, "silu_and_mul.h", kernel)
"""


def uses(wheel: Path) -> tuple[str, str]:
    """Programs that use what a wheel carries: one a kernel of it, the other one that it does not carry."""
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(name for name in archive.namelist() if re.search(r"/sm_90a/.*/manifest\.json$", name))
        module, functor, *numbers = json.loads(archive.read(names[0]))["manifest"]["markers"]
    numbers = [number == "true" if number in ("true", "false") else int(number.rstrip("u")) for number in numbers]
    parts = {"kernel": repr(module.replace("device.", "device::")), "functor": repr(functor)}
    return USE.format(numbers=numbers, **parts), USE.format(numbers=[*numbers[:-1], numbers[-1] + 1], **parts)


def add_artifacts(
    wheel: Path, into: Path, *arguments: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sgljit_core", "wheel", str(wheel), "--into", str(into), *arguments]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=variables)


@pytest.fixture
def example(tmp_path) -> isolated.Built:
    """The example of the README, built from a copy of its sources."""
    (tmp_path / "built").mkdir()
    source = isolated.copy_sources(isolated.ROOT / "examples" / "sgljit-silu-and-mul", tmp_path)
    return isolated.build(source, tmp_path / "built")


@pytest.mark.slow
def test_in_the_projects_own_directory_it_builds_what_is_in_the_wheel(example, tmp_path):
    done = add_artifacts(example.wheel, Path("out"), "--cuda-arch", "9.0", cwd=example.project)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (example.project / "out").iterdir()
    names = zipfile.ZipFile(wheel).namelist()
    carried = {name.rpartition("/")[0] for name in names if name.startswith("sgljit_silu_and_mul/prebuilt/")}
    assert carried
    machine = platform.machine()
    assert f"wrote out/{wheel.name}, which carries {len(carried)} artifacts for cpu-{machine} and sm_90a" in done.stdout
    assert not [name for name in names if "__pycache__" in name]
    assert not (example.project / "sgljit_silu_and_mul" / "prebuilt").exists()


@pytest.mark.slow
def test_artifacts_are_found_beside_sources_that_are_nested(tmp_path):
    source = isolated.copy_sources(isolated.ROOT / "examples" / "sgljit-silu-and-mul", tmp_path)
    package = source / "sgljit_silu_and_mul"
    (package / "native").mkdir()
    (package / "csrc").rename(package / "native" / "src")
    for file, old, new in (
        ("plugin.py", "host=", 'sources="native/src", host='),
        ("reference.py", "(torch.float16, torch.bfloat16, torch.float32)", "(torch.float32,)"),  # one is enough
    ):
        (package / file).write_text((package / file).read_text().replace(old, new))
    (tmp_path / "built").mkdir()
    done = add_artifacts(isolated.build(source, tmp_path / "built").wheel, tmp_path / "out", "--cuda-arch", "9.0")
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (tmp_path / "out").iterdir()
    unpacked = tmp_path / "unpacked"
    zipfile.ZipFile(wheel).extractall(unpacked)
    code = (
        "import torch\nfrom sgljit_core import ops\nfrom sgljit_tools import installation\n"
        "out = torch.empty(1, 3)\nops['silu_and_mul'].silu_and_mul(torch.zeros(1, 6), out)\n"
        "print(out.tolist(), *installation.carried_artifacts())"
    )
    path = os.pathsep.join([str(unpacked), *filter(None, sys.path)])
    bare = {"PYTHONPATH": path, "SGLJIT_JIT": "error", "SGLJIT_CACHE_DIR": str(tmp_path / "empty")}
    said = isolated.run(sys.executable, "-c", code, cwd=tmp_path, env={**os.environ, **bare})
    carried = unpacked / "sgljit_silu_and_mul" / "native" / "prebuilt"
    assert said.splitlines()[-1].startswith("[[0.0, 0.0, 0.0]] ")
    assert str(carried) in said


def test_a_package_that_is_not_in_the_wheel_is_refused(example, tmp_path):
    plugin = example.project / "sgljit_silu_and_mul" / "plugin.py"
    plugin.write_text(plugin.read_text().replace('package="sgljit_silu_and_mul"', 'package="sgljit_norm"'))
    (tmp_path / "again").mkdir()
    wheel = isolated.build(example.project, tmp_path / "again").wheel
    done = add_artifacts(wheel, tmp_path / "out", "--cuda-arch", "9.0")
    assert done.returncode == 1
    assert "the package 'sgljit_norm' of family 'silu_and_mul' was imported from " in done.stderr
    assert "not from the wheel; its name in KernelFamily(package=...)" in done.stderr


@pytest.mark.parametrize(
    ("generator", "advice"),
    [
        ("hatchling 1.27.0", 'add artifacts = ["/acme/csrc/**"] below [tool.hatch.build.targets.wheel]'),
        ("setuptools (75.1)", 'add acme = ["csrc/**"] below [tool.setuptools.package-data]'),
        ("poetry-core 1.9.0", 'add include = [{ path = "acme/csrc/**", format = "wheel" }] below [tool.poetry]'),
        ("flit 3.12.0", "acme/csrc must lie inside of acme"),
        ("uv 0.8.3", "but for wheel-exclude below [tool.uv.build-backend]"),
        ("somebody 1.0", "let the build backend, somebody, pack acme/csrc;"),
    ],
)
def test_each_build_backend_gets_its_advice(tmp_path, generator, advice):
    (tmp_path / "acme-1.dist-info").mkdir()
    (tmp_path / "acme-1.dist-info" / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: {generator}\n")
    assert advice in wheel._how_to_pack(tmp_path, Path("acme/csrc"))


@pytest.mark.slow
def test_a_wheel_without_sources_is_told_as_one_cause(example, tmp_path):
    isolated.run(sys.executable, "-m", "wheel", "unpack", example.wheel, cwd=tmp_path)
    (content,) = tmp_path.glob("sgljit_silu_and_mul-*")
    shutil.rmtree(content / "sgljit_silu_and_mul" / "csrc")
    isolated.run(sys.executable, "-m", "wheel", "pack", content, cwd=tmp_path)
    lacking = tmp_path / example.wheel.name
    done = add_artifacts(lacking, tmp_path / "out", "--cuda-arch", "9.0")
    assert done.returncode == 1
    assert done.stderr.count("error") == 1
    assert len(done.stderr.splitlines()) == 1
    text = (
        r"lacks a source: .*/csrc does not exist\. In pyproject.toml: hatchling leaves out what \.gitignore names; add"
    )
    assert re.search(f"{lacking.name} {text}", done.stderr)


@pytest.mark.slow
def test_it_serves_a_machine_without_compilers_from_an_empty_cache(distribution, example, tmp_path):
    core = distribution("sgljit-core")
    done = add_artifacts(example.wheel, tmp_path, "--cuda-arch", "9.0", "--cuda-arch", "10.0")
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-linux_" in wheel.name
    carried = {name.split("/")[2] for name in zipfile.ZipFile(wheel).namelist() if "/prebuilt/" in name}
    assert {"sm_90a", "sm_100a"} < carried
    assert any(name.startswith("cpu-") for name in carried)

    environment = isolated.Environment(tmp_path / "environment", [core, example])
    environment.install(core, dataclasses.replace(example, wheel=wheel))
    bare = {**environment.variables, "PATH": "/nowhere", "SGLJIT_JIT": "error"}
    carries, carries_not = uses(wheel)
    said = isolated.run(environment.python, "-c", carries, cwd=tmp_path, env=bare)
    assert said.endswith(f"{round(512 * 4 / (1 + math.exp(-2)))}\n")
    other = subprocess.run(
        [environment.python, "-c", carries_not], cwd=tmp_path, env=bare, stderr=subprocess.PIPE, text=True
    )
    assert "CompileForbiddenError" in other.stderr
    assert not list((environment.home / ".cache").rglob("*.cubin"))


@pytest.mark.slow
def test_what_it_carries_is_passed_over_where_the_plugins_own_sources_differ(
    distribution, example, tmp_path, monkeypatch
):
    core = distribution("sgljit-core")
    monkeypatch.setenv("SGLJIT_JIT", "error")  # it forbids what is compiled on demand
    done = add_artifacts(example.wheel, tmp_path, "--cuda-arch", "9.0", "--platform", "manylinux_2_36_x86_64")
    monkeypatch.delenv("SGLJIT_JIT")
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*-py3-none-manylinux_2_36_x86_64.whl")
    environment = isolated.Environment(tmp_path / "environment", [core, example])
    environment.install(core, dataclasses.replace(example, wheel=wheel))
    program, _ = uses(wheel)

    def use():
        return subprocess.run(
            [environment.python, "-c", program],
            cwd=tmp_path,
            env={**environment.variables, "SGLJIT_JIT": "error"},
            stderr=subprocess.PIPE,
            text=True,
        )

    core_header = environment.site / "sgljit_core" / "include" / "sgl_kernel" / "tensor.h"
    core_header.write_text(core_header.read_text() + "\n// another release of the core, of the same ABI\n")
    used = use()
    assert used.returncode == 0, used.stderr
    header = environment.site / "sgljit_silu_and_mul" / "csrc" / "silu_and_mul.h"
    header.write_text(header.read_text() + "\n// another version\n")
    refused = use()
    assert "CompileForbiddenError" in refused.stderr
    assert "silu_and_mul.h changed" in refused.stderr


@pytest.mark.parametrize(
    ("platform", "text"),
    [
        ("win_amd64", "a build on this machine serves linux_x86_64, manylinux_2_N_x86_64 or musllinux_1_N_x86_64"),
        ("manylinux_2_28_riscv64", "a build on this machine serves linux_x86_64"),
        pytest.param(
            "manylinux_2_2_x86_64",
            "a library compiled here needs glibc 2.",
            marks=pytest.mark.slow,  # builds it
        ),
    ],
)
def test_a_platform_that_the_wheel_does_not_serve_is_refused(distribution, tmp_path, platform, text):
    wheel = distribution("sgljit-wait-value").wheel
    done = add_artifacts(wheel, tmp_path, "--cuda-arch", "9.0", "--platform", platform)
    assert done.returncode == 1
    assert f"platform tag '{platform}': {text}" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_wheel_that_is_no_plugin_is_refused(distribution, tmp_path):
    done = add_artifacts(distribution("sgljit-core").wheel, tmp_path, "--cuda-arch", "9.0")
    assert done.returncode == 1
    assert "registers no kernel family: it has no entry point in the group sgljit.kernels" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_wheel_is_refused_with_the_command_that_makes_one(tmp_path):
    cut = tmp_path / "family-1.0-py3-none-any.whl"
    cut.write_text("not all of it")
    for path in (tmp_path, cut):
        done = add_artifacts(path, tmp_path, "--cuda-arch", "9.0")
        assert done.returncode == 1
        assert f"{path} is not a wheel; make one first: pip wheel --no-deps" in done.stderr


@pytest.mark.slow
def test_without_an_architecture_it_carries_code_for_the_cpu_and_for_samples_if_asked(
    distribution, tmp_path, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    wheel, carried = distribution("sgljit-kvcache").wheel, []
    for options in ([], ["--samples"]):
        into = tmp_path / f"with{len(options)}"
        done = add_artifacts(wheel, into, *options)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"for cpu-{platform.machine()}\n" in done.stdout
        assert "left out: the kernels for CUDA, because there is no device here" in done.stderr
        (made,) = into.iterdir()
        names = zipfile.ZipFile(made).namelist()
        carried.append({name.split("/prebuilt/")[1].rpartition("/")[0] for name in names if "/prebuilt/" in name})
    assert carried[0] < carried[1]


@pytest.mark.slow
def test_a_family_without_calls_and_samples_is_refused_by_name(tmp_path):
    (tmp_path / "built").mkdir()
    source = isolated.copy_sources(isolated.ROOT / "examples" / "sgljit-add-constant", tmp_path)
    ops = source / "sgljit_add_constant" / "ops.py"
    ops.write_text(ops.read_text().replace(', samples="sgljit_add_constant.reference:samples_of_add_constant"', ""))
    example = isolated.build(source, tmp_path / "built")
    done = add_artifacts(example.wheel, tmp_path / "out", "--cuda-arch", "9.0")
    assert done.returncode == 1
    assert "nothing is known to build for family 'add_constant': no call of its ops asks for anything" in done.stderr


def test_an_architecture_that_is_none_is_refused(distribution, tmp_path):
    done = add_artifacts(distribution("sgljit-norm").wheel, tmp_path, "--cuda-arch", "hopper")
    assert done.returncode == 1
    assert "--cuda-arch='hopper' is no architecture" in done.stderr
    assert not list(tmp_path.iterdir())
