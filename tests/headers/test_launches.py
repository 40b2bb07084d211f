"""What host parts launch on a CUDA device: seen without one, by a driver that writes launches down."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sgljit_core import errors
from sgljit_core.compilers import nvrtc
from sgljit_tools import recording
from sgljit_triton.tests.forked import Server

CSRC = Path(__file__).parent / "csrc" / "launches"
NULL_DRIVER = Path(recording.__file__).parent / "csrc"
LAUNCHES = """
import torch, tvm_ffi
from sgljit_core import KernelFamily, TensorSpec, override_cuda_arch
from sgljit_core.compilers import arch
from sgljit_tools.recording.tensors import Shaped
arch.pretend(arch.parse_cuda_target("9.0", "a test"))
data, kept = torch.ones(4), []
def on_device(type_):
    kept.append(Shaped(TensorSpec((4,), "float32"), data.data_ptr(), (type_, 0)))
    return tvm_ffi.from_dlpack(kept[-1])
x = on_device(2)
family = KernelFamily("launches", "launched")
with override_cuda_arch(9, 0), tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), 0x1230):
    module = family.load_host("launches", cpp_files=["launches.cpp"], header_only=False)
    add, multiply = module.add, module.multiply
    CALLS
"""


BUILD = """
import sys
from sgljit_core import load_jit, why
def build():
    load_jit("recording_driver", csrc=sys.argv[1], cpp_files=["recording_driver.cpp"], header_only=False,
             extra_cflags=["-DSGL_NULL_MAJOR=9", "-DSGL_NULL_MINOR=0"], extra_include_paths=[sys.argv[2]],
             extra_ldflags=["-Wl,-soname,libcuda.so.1"])
build()
print(why(build).artifact / "module.so")
"""


@pytest.fixture(scope="module")
def driver() -> Path:
    """The library."""
    try:
        nvrtc.find_nvrtc("this test")
    except errors.ToolchainNotFoundError as error:
        pytest.skip(str(error).splitlines()[0])

    # In a process of its own: whoever loads a libcuda.so.1 has no other driver from then on.
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(CSRC), str(NULL_DRIVER)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def server(driver: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The process that those of ``launched`` are forked from: the driver is there before torch is."""
    made = Server(tmp_path_factory.mktemp("server"), LD_PRELOAD=str(driver), CUDA_VISIBLE_DEVICES="")
    yield made
    made.close()


@pytest.fixture
def launched(server: Server, tmp_path: Path) -> Callable[[str], tuple[str, list[list[str]]]]:
    """What calls print, and what they launch: kernel, blocks, bytes of dynamic shared memory, stream."""
    (tmp_path / "launched").mkdir()
    (tmp_path / "launched" / "__init__.py").touch()
    shutil.copytree(CSRC, tmp_path / "launched" / "csrc")
    record = tmp_path / "record"

    def run(calls: str) -> tuple[str, list[list[str]]]:
        # Without LD_PRELOAD, as compilers need no driver.
        variables = {"PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "", "RECORD": str(record)}
        done = server.run(LAUNCHES.replace("CALLS", calls), {**os.environ, **variables})
        assert done.returncode == 0, done.stderr
        return done.stdout, [line.split() for line in record.read_text().splitlines()]

    return run


@pytest.mark.slow
def test_two_enums_of_one_value_are_two_kernels(launched):
    _, ((added, *_), (multiplied, *_), (again, *_)) = launched("add(x, 0); multiply(x); add(x, 0)")
    assert "Add" in added
    assert "Multiply" in multiplied
    assert again == added


@pytest.mark.slow
def test_more_shared_memory_than_32_bits_count_is_refused(launched):
    calls = """
    add(x, 1 << 16)
    for size in (1 << 31, (1 << 32) + 1024):
        try:
            add(x, size)
        except RuntimeError as error:
            print(error)
    """
    printed, ((_, blocks, smem, _),) = launched(calls)
    assert (blocks, smem) == ("1", "65536")
    assert "no block has 2147483648 bytes of shared memory" in printed
    assert "no block has 4294968320 bytes of shared memory" in printed


@pytest.mark.slow
def test_no_block_has_more_shared_memory_than_the_device_gives_to_one(launched):
    sizes = "(232448, 232449, 1 << 31, (1 << 32) + 1024, -1)"  # the last is 2**64 - 1
    printed, _ = launched(f"print(*map(module.blocks_per_sm, {sizes})); add(x, 0)")
    assert printed == "1 0 0 0 0\n"


@pytest.mark.slow
@pytest.mark.parametrize("type_", [2, 13], ids=["device", "managed"])
def test_memory_of_either_kind_is_worked_on_in_the_current_stream(launched, type_):
    _, ((*_, stream),) = launched(f"add(on_device({type_}), 0)")
    assert stream == "0x1230"


def test_without_a_current_context_the_current_device_is_the_first(launched):
    printed, ((_, blocks, _, stream),) = launched("print(module.blocks_per_sm(0)); module.on_the_current_device(x)")
    assert printed == "1\n"
    assert (blocks, stream) == ("7", "(nil)")


@pytest.mark.slow
def test_a_row_program_that_is_called_again_launches_what_its_rows_ask_for(launched):
    calls = """
    shares = family.load_host("rows", cpp_files=["rows.cpp"], header_only=False).shares
    def on(device, *shape, dtype="bfloat16"):
        kept.append(Shaped(TensorSpec(shape, dtype), data.data_ptr() + (len(kept) << 30), (2, device)))
        return tvm_ffi.from_dlpack(kept[-1])
    def call(*rows, **options):
        shares(on(*rows, **options), on(*rows, **options))
    usual = (0, 4, 4096)
    call(*usual); call(*usual)
    call(0, 9000, 4096); call(*usual)
    call(0, 4, 8192); call(*usual)
    call(*usual, dtype="float16"); call(*usual)
    call(*usual, dtype="float32"); call(*usual)
    call(1, 4, 4096); call(*usual)
    """
    _, launches = launched(calls)
    usual, *others = launches
    assert others[::2] == [usual] * 6
    differing = {tuple(launch) for launch in others[1::2]}
    assert len(differing) == 5
    assert tuple(usual) not in differing
