"""How does a cubin become a kernel that can be launched? The CUDA driver's library interface, through ctypes."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager

from sgljit_core.errors import DriverError

_NEEDS_NEWER_DRIVER = {200, 209, 222, 223}  # invalid image, no binary for the GPU, unsupported PTX or JIT


def load_kernel(cubin: bytes, symbol: str, device_id: int, label: str, compiler: str) -> int:
    """Load a cubin on a device and return the address of its kernel (a ``CUfunction``), for the life of the process.

    Messages have the kernel's ``label`` and the version of its ``compiler``. Raises DriverError: the driver refuses.
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
                f"compiled by NVRTC {compiler}. Update the driver, or install the compiler of its release: "
                f'pip install "cuda-toolkit[nvrtc,cudart]=={supported}.*"'
            )
        _check(status)
        _check(driver.cuLibraryGetKernel(ctypes.byref(kernel), library, symbol.encode()))
        _check(driver.cuKernelGetFunction(ctypes.byref(function), kernel))
    assert function.value is not None
    return function.value


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


@functools.cache  # retained once, for the life of the process
def _primary_context(device_id: int) -> ctypes.c_void_p:
    context = ctypes.c_void_p()
    _check(_driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), device_id))
    return context


@contextmanager
def _context(device_id: int) -> Iterator[None]:
    """Make a device's primary context, the one that PyTorch uses, current."""
    driver, popped = _driver(), ctypes.c_void_p()
    _check(driver.cuCtxPushCurrent_v2(_primary_context(device_id)))
    try:
        yield
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(popped))


def _check(status: int) -> None:
    if status != 0:
        raise DriverError(_text(status))


def _text(status: int) -> str:
    name, explanation = ctypes.c_char_p(), ctypes.c_char_p()
    _library().cuGetErrorName(status, ctypes.byref(name))
    _library().cuGetErrorString(status, ctypes.byref(explanation))
    return f"{(name.value or b'unknown').decode()} ({status}): {(explanation.value or b'').decode()}"
