"""The host part and CPU code of a family on processors that no test has: compiled for them, and run there by qemu."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import platform
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

from sgljit_core.compilers import native
from sgljit_core.jit.modules import ModuleRequest
from sgljit_core.specs.build import Target
from sgljit_tools.recording.recorder import record

CXX = {"aarch64": "aarch64-linux-gnu-g++", "x86_64": "x86_64-linux-gnu-g++"}
ELF_MACHINES = {"aarch64": 183, "x86_64": 62}
# The first has vectors of 4 floats and nothing that came after 2003; the second AVX2, and no AVX-512.
PROCESSORS = [("aarch64", "max"), ("x86_64", "Opteron_G1"), ("x86_64", "Haswell")]
CODES = {torch.float32: (2, 32), torch.float16: (2, 16), torch.bfloat16: (4, 16)}  # of DLPack

pytestmark = pytest.mark.slow


class Compiled(NamedTuple):
    """Libraries for a machine.

    Attributes:
        tvm_ffi: what they link against.
        host: the host part.
        functions: the library of each deferred function, by its C++ expression.
    """

    tvm_ffi: Path
    host: Path
    functions: dict[str, Path]


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


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Callable[[str], Compiled]:
    """Compile what the samples of the activations ask for, for a machine."""

    @functools.cache
    def get(machine: str) -> Compiled:
        if shutil.which(CXX[machine]) is None:
            package = f"g++-{machine.replace('_', '-')}-linux-gnu"
            pytest.skip(f"{CXX[machine]} is not installed (Debian: apt-get install {package})")
        tvm_ffi = tvm_ffi_for(machine, tmp_path_factory.mktemp(machine))
        wanted = record(["activation"], cuda_arch=None, on_cpu=True, samples=True).wanted
        found = {}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SGLJIT_CXX", CXX[machine])
            patch.setattr(native, "tvm_ffi_library", lambda: tvm_ffi)
            for one in wanted:
                spec = dataclasses.replace(one.spec, target=Target(f"cpu-{machine}"))
                request = ModuleRequest(spec, tmp_path_factory.getbasetemp())
                request.find_tools(spec.label)
                symbol = dict(spec.cpp_wrappers).get("address", "").removeprefix("host::address_of<").removesuffix(">")
                found[symbol] = request.make(tmp_path_factory.mktemp("made")).payload
        return Compiled(tvm_ffi, found.pop(""), found)

    return get


@pytest.mark.parametrize("machine", CXX)
def test_all_of_it_is_compiled_for_that_machine(compiled, machine):
    _, host, functions = compiled(machine)
    assert len(functions) > 10
    libraries = [host, *functions.values()]
    assert {int.from_bytes(one.read_bytes()[18:20], "little") for one in libraries} == {ELF_MACHINES[machine]}


@pytest.mark.parametrize("dtype", CODES, ids=str)
@pytest.mark.parametrize(("machine", "processor"), PROCESSORS)
def test_it_computes_what_pytorch_does_here(compiled, tmp_path, machine, processor, dtype):
    if shutil.which(f"qemu-{machine}") is None:
        pytest.skip(f"qemu-{machine} is not installed (Debian: apt-get install qemu-user)")
    tvm_ffi, host, functions = compiled(machine)
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
