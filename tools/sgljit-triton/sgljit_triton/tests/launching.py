"""Helpers of a process that launches on a device that is not there: tensors, and the last launch."""

from __future__ import annotations

import ctypes

import tvm_ffi

from sgljit_core import TensorSpec
from sgljit_core.compilers import arch
from sgljit_tools.recording.tensors import Shaped

arch.pretend(arch.parse_cuda_target("9.0", "the test"))
driver = ctypes.CDLL("libcuda.so.1")
driver.test_last_launch.restype = ctypes.c_void_p


class Last(ctypes.Structure):
    """What the driver keeps."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("dynamic_smem", ctypes.c_uint),
        ("attributes", ctypes.c_uint),
        ("count", ctypes.c_int),
        ("arguments", ctypes.c_int),
        ("values", ctypes.c_uint64 * 80),
        ("load_status", ctypes.c_int),
        ("launch_status", ctypes.c_int),
    )


LAST = Last.from_address(driver.test_last_launch())
_kept = []


def tensor(address: int, shape: tuple[int, ...] = (64,), dtype: str = "float32", device: tuple[int, int] = (2, 0)):
    """A tensor of such an address, of tvm-ffi; the device is 2 for CUDA and 1 for the CPU."""
    shaped = Shaped(TensorSpec(shape, dtype), address, device)
    _kept.append(shaped)
    return tvm_ffi.from_dlpack(shaped)
