"""The host part and CPU code of a family, compiled for aarch64 and run there by qemu: no test has such a machine."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import isolated
import pytest
import torch

from sgljit_core.compilers import native
from sgljit_core.jit.modules import ModuleRequest
from sgljit_core.specs.build import Target
from sgljit_tools.recording.recorder import record

CXX = "aarch64-linux-gnu-g++"
SYSTEM = Path("/usr/aarch64-linux-gnu")  # where Debian puts that machine's libraries
EM_AARCH64 = 183
CODES = {torch.float32: (2, 32), torch.float16: (2, 16), torch.bfloat16: (4, 16)}  # of DLPack

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tvm_ffi(tmp_path_factory) -> Path:
    """The library of tvm-ffi for aarch64, of the installed version."""
    if shutil.which(CXX) is None:
        pytest.skip(f"{CXX} is not installed (Debian: apt-get install g++-aarch64-linux-gnu)")
    into = tmp_path_factory.mktemp("tvm_ffi")
    wanted = f"apache-tvm-ffi=={importlib.metadata.version('apache-tvm-ffi')}"
    options = ["--no-deps", "--only-binary", ":all:", "--platform", "manylinux_2_28_aarch64", "--dest", str(into)]
    done = subprocess.run([sys.executable, "-m", "pip", "download", *options, wanted], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no index has {wanted} for aarch64: {done.stderr.strip().splitlines()[-1]}")
    (wheel,) = into.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract("tvm_ffi/lib/libtvm_ffi.so", into))


@pytest.fixture(scope="module")
def compiled(tvm_ffi, tmp_path_factory) -> dict[str, Path]:
    """The libraries of all that the samples of the activations ask for, by the C++ expressions of functions."""
    wanted = record(["activation"], cuda_arch=None, on_cpu=True, samples=True).wanted
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLJIT_CXX", CXX)
        patch.setattr(native, "tvm_ffi_library", lambda: tvm_ffi)
        for one in wanted:
            spec = dataclasses.replace(one.spec, target=Target("cpu-aarch64"))
            request = ModuleRequest(spec, tmp_path_factory.getbasetemp())
            request.find_tools(spec.label)
            wrappers = dict(spec.cpp_wrappers)
            symbol = wrappers.get("address", "").removeprefix("host::address_of<").removesuffix(">")
            found[symbol] = request.make(tmp_path_factory.mktemp("made")).payload
    return found


def test_all_of_it_compiles_for_aarch64(compiled):
    assert len(compiled) > 10
    assert "" in compiled  # the host part
    machines = {int.from_bytes(library.read_bytes()[18:20], "little") for library in compiled.values()}
    assert machines == {EM_AARCH64}


@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_it_computes_what_pytorch_does_here(compiled, tvm_ffi, tmp_path, dtype):
    if shutil.which("qemu-aarch64") is None:
        pytest.skip("qemu-aarch64 is not installed (Debian: apt-get install qemu-user)")
    program, functions = tmp_path / "aarch64_calls", tmp_path / "functions"
    source = Path(__file__).with_name("aarch64_calls.cpp")
    include = importlib.metadata.distribution("apache-tvm-ffi").locate_file("tvm_ffi/include")
    isolated.run(CXX, "-std=c++20", f"-I{include}", "-o", program, source, tvm_ffi, "-ldl", cwd=tmp_path)
    functions.write_text("".join(f"{symbol}\t{library}\n" for symbol, library in compiled.items() if symbol))
    rows = torch.randn(3, 2 * 261, generator=torch.Generator().manual_seed(1)).mul(4).to(dtype)
    (tmp_path / "in").write_bytes(rows.view(torch.uint8).numpy().tobytes())
    run = ["qemu-aarch64", "-L", SYSTEM, "-E", f"LD_LIBRARY_PATH={tvm_ffi.parent}", program, compiled[""], functions]
    isolated.run(*run, *map(str, (*CODES[dtype], *rows.shape)), "in", "out", cwd=tmp_path)
    result = torch.frombuffer(bytearray((tmp_path / "out").read_bytes()), dtype=dtype).view(3, 261)
    gate, up = rows.double().chunk(2, dim=1)
    expected = (torch.nn.functional.silu(gate) * up).to(dtype)
    torch.testing.assert_close(result, expected)
