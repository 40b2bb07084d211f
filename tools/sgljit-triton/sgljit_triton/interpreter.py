"""How does a kernel run on the CPU? By Triton's interpreter, for tests: slowly, one program after the other.

Triton decides at its import whether it interprets, for all kernels of a process. So a process of its own runs them,
and nobody else's kernels are touched. In a process that was started with ``TRITON_INTERPRET=1`` they run there, where
a debugger sees them. Tensors go to the other process with all of their storage, and come back so: a kernel that writes
beside its tensor does it here as well.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sgljit_core.errors import ToolchainNotFoundError
from sgljit_core.machine.forks import ForkLock

from . import compiler
from .sources import Finder


class Call(NamedTuple):
    """One launch: the kernel's file, its grid, and its arguments by name.

    ``sources`` has a hash of the file and of each that it imports.
    """

    family: str
    csrc: Path
    file: str
    kernel: str
    grid: Sequence[int]
    arguments: Mapping[str, Any]
    sources: Mapping[str, str]


class _Tensor(NamedTuple):
    """A tensor of a call on its way: in which storage, and where in it."""

    storage: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


_LARGEST = 1 << 30  # bytes; ctypes copies no more than 2**31 at once
_lock = ForkLock()


def run(call: Call) -> None:
    """Run a launch to its end.

    Raises:
        ToolchainNotFoundError: Triton or numpy is not installed.
        RuntimeError: the kernel raised something, or its process ended.
        ValueError: the memory of a tensor is too large to copy.
    """
    if 0 in call.grid:
        return
    needed_for = f"{call.family}.{call.kernel} on the CPU, where Triton's interpreter runs it"
    compiler.find(needed_for)
    if importlib.util.find_spec("numpy") is None:
        raise ToolchainNotFoundError(
            "numpy", needed_for=needed_for, searched=[f"the packages of {sys.executable}"], remedy="pip install numpy"
        )
    if _is_interpreting():
        perform(call)
        return
    storages: dict[int, torch.UntypedStorage] = {}
    packed = {name: _packed(value, storages) for name, value in call.arguments.items()}
    if (largest := max([0, *(one.nbytes() for one in storages.values())])) > _LARGEST:
        raise ValueError(
            f"{call.family}.{call.kernel}: a tensor on the CPU lies in {largest >> 20} MiB of memory. Triton's "
            f"interpreter gets a copy of that, and takes at most {_LARGEST >> 20} MiB: clone the tensor, or use a GPU"
        )
    contents = {key: ctypes.string_at(one.data_ptr(), one.nbytes()) for key, one in storages.items()}
    with _lock.here():
        answer = _process().ask(call._replace(arguments=packed), contents)
    if isinstance(answer, str):
        raise RuntimeError(f"{call.family}.{call.kernel}, in Triton's interpreter: {answer}")
    for key, content in answer.items():
        if content != contents[key]:  # memory that was not written may be read-only
            ctypes.memmove(storages[key].data_ptr(), content, len(content))


def perform(call: Call) -> None:
    """Run a launch in this process, which must be interpreting."""
    from triton.runtime import Autotuner

    finder = _finder(call.family, call.csrc)
    known = _sources.setdefault((call.family, call.csrc), {})
    if any(known.get(file, key) != key for file, key in call.sources.items()):  # an edit
        known.clear()
        finder.forget()
    known.update(call.sources)
    function = getattr(finder.module(call.file), call.kernel)
    if isinstance(function, Autotuner):  # its configuration is among the arguments
        function = function.fn
    function[tuple(call.grid)](**call.arguments)


_finder = functools.cache(Finder)  # each stays in sys.meta_path
_sources: dict[tuple[str, Path], dict[str, str]] = {}  # what the modules of a family were imported from


def _is_interpreting() -> bool:
    triton = sys.modules.get("triton")
    return triton is not None and bool(triton.knobs.runtime.interpret)


def _packed(value: Any, storages: dict[int, torch.UntypedStorage]) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    storage = value.untyped_storage()
    storages[storage.data_ptr()] = storage
    return _Tensor(storage.data_ptr(), value.dtype, tuple(value.shape), value.stride(), int(value.storage_offset()))


class _Process:
    """A process that interprets kernels."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        path = [os.path.abspath(place) for place in sys.path]  # noqa: PTH100 - "" is the working directory
        start = f"import sys; sys.path[:] = {path!r}; from {__name__} import serve; serve()"
        command = ["env", "TRITON_INTERPRET=1", sys.executable, "-c", start]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")

    def ask(self, call: Call, contents: Mapping[int, bytes]) -> dict[int, bytes] | str:
        """The storages as the launch leaves them, or what it raised."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump((call, contents), self._process.stdin)
            self._process.stdin.flush()
            return pickle.load(self._process.stdout)  # type: ignore[no-any-return]  # noqa: S301 - our own process
        except (EOFError, OSError) as error:
            _running.clear()
            return f"its process ended with status {self._process.wait()} ({type(error).__name__})"
        except BaseException:  # such as an alarm: the answer that comes yet is not that of the next call
            _running.clear()
            self.close()
            raise

    def close(self) -> None:
        """End it, if it is this process's own: a forked child has the object, and must not wait for it."""
        if self.owner == os.getpid():
            self._process.kill()
            self._process.communicate()


_running: list[_Process] = []


def _process() -> _Process:
    """The process that interprets. A forked child has one of its own."""
    if _running and _running[0].owner != os.getpid():
        _close()
    if not _running:
        _running.append(_Process())
    return _running[0]


@atexit.register
def _close() -> None:
    while _running:
        _running.pop().close()


def serve() -> None:
    """In that process: answer one call after the other."""
    incoming, outgoing = os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb")
    _round_as_a_gpu_does()
    os.dup2(2, 1)  # what a kernel prints goes to standard error
    while True:
        try:
            call, contents = pickle.load(incoming)  # noqa: S301 - from the process that started this one
        except EOFError:
            return
        storages = {key: torch.frombuffer(bytearray(one or b"\0"), dtype=torch.uint8) for key, one in contents.items()}
        answer: object
        try:
            perform(
                call._replace(arguments={name: _unpacked(value, storages) for name, value in call.arguments.items()})
            )
            answer = {key: ctypes.string_at(one.data_ptr(), len(contents[key])) for key, one in storages.items()}
        except Exception as error:  # noqa: BLE001 - it is the answer
            answer = f"{type(error).__name__}: {error}"
        pickle.dump(answer, outgoing)
        outgoing.flush()


def _round_as_a_gpu_does() -> None:
    """Let the interpreter round float32 to the nearest bfloat16. Triton's own cuts the digits off, to Triton 3.9.

    No right kernel would pass its tests otherwise. Only this process is changed; where the function has gone, nothing.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    own = getattr(interpreter, "_convert_float", None)
    if own is None:
        return

    def convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if (source, target) != (tl.float32, tl.bfloat16) or data.size == 0:
            return own(data, source, target, rounding)
        numbers = torch.frombuffer(bytearray(data.tobytes()), dtype=torch.float32)
        return numbers.bfloat16().view(torch.int16).numpy().view("uint16").reshape(data.shape)

    interpreter._convert_float = convert  # noqa: SLF001 - it has no public one


def _unpacked(value: Any, storages: Mapping[int, torch.Tensor]) -> Any:
    if not isinstance(value, _Tensor):
        return value
    tensor = torch.empty(0, dtype=value.dtype)
    return tensor.set_(storages[value.storage].untyped_storage(), value.offset, value.shape, value.strides)
