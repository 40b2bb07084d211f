"""The wheel of a family for processors that no test has: it is compiled for them, and its code is run there by qemu."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import isolated
import pytest
import torch

from sgljit_core.cache.manifest import FILE, Manifest

CXX = {"aarch64": "aarch64-linux-gnu-g++", "x86_64": "x86_64-linux-gnu-g++"}
ELF_MACHINES = {"aarch64": 183, "x86_64": 62}
# The first has vectors of 4 floats and nothing that came after 2003; the second AVX2, and no AVX-512.
PROCESSORS = [("aarch64", "max"), ("x86_64", "Opteron_G1"), ("x86_64", "Haswell")]
CODES = {torch.float32: (2, 32), torch.float16: (2, 16), torch.bfloat16: (4, 16)}  # of DLPack
EPOCH = "1000000000"

pytestmark = pytest.mark.slow


class Compiled(NamedTuple):
    """A wheel for a machine, and the libraries in it.

    Attributes:
        wheel: the file, with its final name.
        host: the host part.
        functions: the library of each deferred function, by its C++ expression.
        manifests: what is recorded about all of them.
    """

    wheel: Path
    host: Path
    functions: dict[str, Path]
    manifests: list[Manifest]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("dist", isolated.ROOT / "release" / "dist.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def compiled(script, distribution, tmp_path_factory) -> Callable[[str], Compiled]:
    """The wheel of the activations for a machine, as ``make dist`` builds it."""

    @functools.cache
    def get(machine: str) -> Compiled:
        if shutil.which(CXX[machine]) is None:
            package = f"g++-{machine.replace('_', '-')}-linux-gnu"
            pytest.skip(f"{CXX[machine]} is not installed (Debian: apt-get install {package})")
        into, content = tmp_path_factory.mktemp(machine), tmp_path_factory.mktemp("content")
        pure, variables = distribution("sgljit-activation").wheel, {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        made = script.compile_wheel(pure, machine, into, Path(sys.executable).parent, variables)
        wheel = script.finish(made, tmp_path_factory.mktemp("finished"), EPOCH)
        zipfile.ZipFile(wheel).extractall(content)
        found = {}
        files = sorted(content.rglob(f"cpu-{machine}/**/{FILE}"))
        manifests = [Manifest.parse(file.read_bytes()) for file in files]
        for file, manifest in zip(files, manifests, strict=True):
            name, *arguments = manifest.markers
            found[f"{name.replace('.', '::')}<{', '.join(arguments)}>"] = file.with_name(manifest.payload)
        return Compiled(wheel, found.pop("activation<>"), found, manifests)

    return get


def tvm_ffi_for(machine: str, into: Path) -> Path:
    """The library of tvm-ffi for a machine, of the installed version."""
    distribution = importlib.metadata.distribution("apache-tvm-ffi")
    if machine == platform.machine():
        return Path(str(distribution.locate_file("tvm_ffi/lib/libtvm_ffi.so")))
    wanted = f"apache-tvm-ffi=={distribution.version}"
    options = ["--no-deps", "--only-binary", ":all:", "--platform", f"manylinux_2_28_{machine}", "--dest", str(into)]
    done = subprocess.run([sys.executable, "-m", "pip", "download", *options, wanted], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no index has {wanted} for {machine}: {done.stderr.strip().splitlines()[-1]}")
    (wheel,) = into.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract("tvm_ffi/lib/libtvm_ffi.so", into))


@pytest.mark.parametrize("machine", CXX)
def test_all_of_it_is_compiled_for_that_machine(compiled, machine):
    _, host, functions, manifests = compiled(machine)
    assert len(functions) > 10
    libraries = [host, *functions.values()]
    assert {int.from_bytes(one.read_bytes()[18:20], "little") for one in libraries} == {ELF_MACHINES[machine]}
    assert {one.target for one in manifests} == {f"cpu-{machine}"}
    # A file that no key covers would have to be there, with the same content, on the machine that loads it.
    assert not [one.observed for one in manifests if one.observed]


@pytest.mark.parametrize("machine", CXX)
def test_its_tag_has_the_machine_and_the_c_library_that_it_needs(compiled, tmp_path, machine):
    wheel, host, functions, _ = compiled(machine)
    needed, libraries = set(), set()
    for library in [host, *functions.values()]:
        said = isolated.run("readelf", "--wide", "--dynamic", "--version-info", library, cwd=tmp_path)
        needed |= {int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", said)}
        libraries |= {*re.findall(r"\(NEEDED\).*\[(.+)\]", said)}
    assert re.search(r"-py3-none-(.*)\.whl$", wheel.name)[1] == f"manylinux_2_{max(needed)}_{machine}"
    of_the_system = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1"}
    assert {name for name in libraries - of_the_system if not name.startswith("ld-linux-")} == {"libtvm_ffi.so"}


def test_a_machine_computes_the_keys_that_the_wheel_for_another_has(compiled):
    """But for the machine's name, which is the target's: keys have no compiler and no path in them."""
    of_each = [{tuple(one.markers): dict(one.source) for one in compiled(machine).manifests} for machine in CXX]
    for found, machine in zip(of_each, CXX, strict=True):
        assert {one.pop("target") for one in found.values()} == {f"cpu-{machine}"}
    assert of_each[0] == of_each[1]


def test_a_compiler_for_another_machine_than_the_named_one_is_refused(tmp_path):
    command = [sys.executable, isolated.ROOT / "release" / "cross.py", "riscv64", "g++", tmp_path / "out", "wait_value"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.search(rf"^g\+\+ compiles for {platform.machine()}-[\w-]+, not for riscv64$", done.stderr, re.MULTILINE)
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize("dtype", CODES, ids=str)
@pytest.mark.parametrize(("machine", "processor"), PROCESSORS)
def test_it_computes_what_pytorch_does_here(compiled, tmp_path, machine, processor, dtype):
    if shutil.which(f"qemu-{machine}") is None:
        pytest.skip(f"qemu-{machine} is not installed (Debian: apt-get install qemu-user)")
    _, host, functions, _ = compiled(machine)
    tvm_ffi = tvm_ffi_for(machine, tmp_path)
    program, listed = tmp_path / "call_activation", tmp_path / "functions"
    source = Path(__file__).with_name("call_activation.cpp")
    include = importlib.metadata.distribution("apache-tvm-ffi").locate_file("tvm_ffi/include")
    isolated.run(CXX[machine], "-std=c++20", f"-I{include}", "-o", program, source, tvm_ffi, "-ldl", cwd=tmp_path)
    listed.write_text("".join(f"{symbol}\t{library}\n" for symbol, library in functions.items()))
    rows = torch.randn(3, 2 * 261, generator=torch.Generator().manual_seed(1)).mul(4).to(dtype)
    (tmp_path / "in").write_bytes(rows.view(torch.uint8).numpy().tobytes())
    # Debian puts the libraries of another machine there.
    system = [] if machine == platform.machine() else ["-L", f"/usr/{machine}-linux-gnu"]
    qemu = [f"qemu-{machine}", "-cpu", processor, *system, "-E", f"LD_LIBRARY_PATH={tvm_ffi.parent}"]
    isolated.run(*qemu, program, host, listed, *map(str, (*CODES[dtype], *rows.shape)), "in", "out", cwd=tmp_path)
    result = torch.frombuffer(bytearray((tmp_path / "out").read_bytes()), dtype=dtype).view(3, 261)
    gate, up = rows.double().chunk(2, dim=1)
    torch.testing.assert_close(result, (torch.nn.functional.silu(gate) * up).to(dtype))
