"""The functions users call. Their bodies are C++: csrc/wait_value.cpp checks, and asks the driver or a kernel."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from sgljit_core import cache_once

from .plugin import FAMILY

if TYPE_CHECKING:
    from tvm_ffi import Module


@cache_once
def host_module() -> Module:
    """The host part: the checks, the CPU's wait, and the choice between the driver and a kernel."""
    import tvm_ffi

    tvm_ffi.register_error("TimeoutError", TimeoutError)
    module = FAMILY.host_module()
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is not None:  # the standard's name for: which stream is current?
        address = ctypes.pythonapi.PyCapsule_GetPointer
        address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        module.use_exchange(address(capsule, b"dlpack_exchange_api"))
    return module


@FAMILY.op(exports=host_module, mutates=("flag",))
def stream_wait_value(
    flag: torch.Tensor,
    value: int,
    condition: str = "eq",
    mode: str = "auto",
    timeout: float | None = None,
    device: str | None = None,
) -> None:
    """Hold back what comes next in the current stream until ``flag[0]`` meets the condition.

    The call itself returns at once. Unlike a wait for a ``torch.cuda.Event``, which an event that was never recorded
    lets pass, this waits for ever if the flag is never written: the stream hangs, and every thread that
    synchronises with it. A ``timeout`` is the way out.

    Args:
        flag: int32 or int64, with at least one element; the first is the flag. On a CUDA device, in pinned host memory
            (the current stream of the current device waits), or in plain host memory (the calling thread waits; it
            sleeps, and Ctrl-C ends it).
        value: what the condition compares with.
        condition: "eq": flag == value. "ge": flag - value >= 0 as a signed number, so that counters may wrap around.
            "and": flag & value != 0. "nor": ~(flag | value) != 0.
        mode: "driver": the driver's stream memory operation, which holds no multiprocessor. "kernel": a kernel of one
            thread that polls. "auto": the driver's where there is one for this flag, no timeout is given and the stream
            is not being captured into a graph.
        timeout: seconds. On a stream, the kernel gives up then (but not before a hundred looks, which take 0.1 to
            0.3 ms), what comes behind it runs, and a TimeoutError is raised by the next call of this family,
            ``check_timeouts`` for one. On the CPU it is raised here.
        device: who waits for a flag in host memory, where pinned or not is not to decide: "cuda", "cuda:1", or "cpu",
            for the calling thread.

    Raises:
        sgljit_core.errors.TensorMatchError: the flag is not int32 or int64, or is empty.
        ValueError: another argument makes no sense, or a device cannot reach the flag.
        TimeoutError: an earlier wait on a stream, or this one on the CPU, has given up.
    """


@FAMILY.op(exports=host_module, mutates=("flag",))
def stream_write_value(flag: torch.Tensor, value: int, mode: str = "auto", device: str | None = None) -> None:
    """Set ``flag[0]`` once everything before in the current stream is done; the call returns at once.

    Who has seen the value sees all that the stream wrote before it, in device and host memory. For a flag in plain host
    memory: set it now, and wake the threads that wait for it. Arguments and errors are as in ``stream_wait_value``.
    """


@FAMILY.op(exports=host_module)
def check_timeouts() -> None:
    """Raise TimeoutError if waits on streams have given up since the last time anybody was told.

    It names for each the timeout, the flag's address, the value that was seen and the one that was waited for; where
    more than 16 of a device gave up, the number of the others.

    It does not wait for the device: synchronise first to know about the waits until then.
    """
