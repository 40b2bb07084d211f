"""How does a cubin become a kernel that can be launched? The CUDA driver's library interface, through ctypes."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager

from sgljit_core.errors import DriverError

_NEEDS_NEWER_DRIVER = {200, 209, 222, 223}  # invalid image, no binary for the GPU, unsupported PTX or JIT
_STATIC_SMEM, _MOST_DYNAMIC_SMEM, _MOST_SMEM_OF_A_BLOCK = 1, 8, 97  # attributes of a kernel, and of a device


def load_kernel(cubin: bytes, symbol: str, device_id: int, label: str, compiler: str) -> int:
    """Load a cubin on a device and return the address of its kernel (a ``CUkernel``), for the life of the process.

    It runs in any context of the device, and may have all of a block's shared memory: nobody else sets its limit.
    Messages have its ``label``, and its ``compiler`` with the version. Raises DriverError: the driver refuses.
    """
    driver = _driver()
    with _context(device_id):
        library, kernel, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        status = driver.cuLibraryLoadData(ctypes.byref(library), cubin, None, None, 0, None, None, 0)
        if status in _NEEDS_NEWER_DRIVER:
            version = ctypes.c_int()
            driver.cuDriverGetVersion(ctypes.byref(version))
            supported = f"{version.value // 1000}.{version.value % 1000 // 10}"
            raise DriverError(
                f"{label} cannot be loaded: {_text(status)}. The driver supports CUDA {supported}, the kernel was "
                f"compiled by {compiler}. Update the driver, or install the compiler of its release; for NVRTC: "
                f'pip install "cuda-toolkit[nvrtc,cudart]=={supported}.*"'
            )
        _check(status)
        _check(driver.cuLibraryGetKernel(ctypes.byref(kernel), library, symbol.encode()))
        # Loaded now, since a first launch may be in a graph capture, where the driver loads nothing.
        _check(driver.cuKernelGetFunction(ctypes.byref(function), kernel))
        static, most = ctypes.c_int(), ctypes.c_int()
        _check(driver.cuKernelGetAttribute(ctypes.byref(static), _STATIC_SMEM, kernel, device_id))
        _check(driver.cuDeviceGetAttribute(ctypes.byref(most), _MOST_SMEM_OF_A_BLOCK, device_id))
        _check(driver.cuKernelSetAttribute(_MOST_DYNAMIC_SMEM, most.value - static.value, kernel, device_id))
    assert kernel.value is not None
    return kernel.value


def supported_major() -> int | None:
    """The major version of CUDA that the driver supports; None without a driver. Within one, any minor runs."""
    try:
        library = _library()
    except OSError:
        return None
    version = ctypes.c_int()
    return version.value // 1000 if library.cuDriverGetVersion(ctypes.byref(version)) == 0 else None


@functools.cache  # keeps no failure, which may pass
def _library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        library = _library()
    except OSError as error:
        raise DriverError(f"no CUDA driver on this machine: {error}") from error
    _check(library.cuInit(0))
    return library


@contextmanager
def _context(device_id: int) -> Iterator[None]:
    """Make a device's primary context, the one that PyTorch uses, current. It is never released, as PyTorch's."""
    driver, context = _driver(), ctypes.c_void_p()
    _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device_id))
    _check(driver.cuCtxPushCurrent_v2(context))
    try:
        yield
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))


def _check(status: int) -> None:
    if status != 0:
        raise DriverError(_text(status))


def _text(status: int) -> str:
    name, explanation = ctypes.c_char_p(), ctypes.c_char_p()
    _library().cuGetErrorName(status, ctypes.byref(name))
    _library().cuGetErrorString(status, ctypes.byref(explanation))
    return f"{(name.value or b'unknown').decode()} ({status}): {(explanation.value or b'').decode()}"
