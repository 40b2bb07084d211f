"""What do host parts launch, with which parameters? The driver of a recording reports each launch.

That shows a launch on another stream than the caller's, and a stride that is neither refused nor in any parameter.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sgljit_core import Op
from sgljit_core.builds.recording import Wanted
from sgljit_core.compilers import arch, toolchain
from sgljit_core.load.signatures import lines
from sgljit_tools.errors import RecordingError

from .tensors import Shaped

STREAM = 0x5117  # of the caller; the driver takes any

_DRIVER = Path(__file__).parent / "csrc" / "null_driver.cpp"
_PARAMETER = re.compile(r"parameter \d+: (?:.* \((\d+) bytes, aligned to \d+\)$)?")  # a struct has its size


class _Config(ctypes.Structure):
    """CUlaunchConfig of the CUDA driver, up to its attributes."""

    _fields_ = (("sizes", ctypes.c_uint32 * 7), ("stream", ctypes.c_uint64))


Launch = tuple[int, int, tuple[int, ...], bytes]  # the kernel's number, the stream, grid with block, the parameters


class Launches:
    """Listens to the driver of a recording."""

    def __init__(self, driver: ctypes.CDLL, wanted: Mapping[Wanted, None]) -> None:
        self._wanted = wanted
        self._found: list[Launch] = []
        self.odd: dict[tuple[tuple[int, ...], int], str] = {}  # see Recording
        kind = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Config), ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p))
        self._callback = kind(self._note)  # it must live as long as the driver calls it
        driver.sgl_null_driver_tells(self._callback)

    def of(self, call: Callable[[], Any]) -> list[Launch]:
        """The launches of a call, for which ``STREAM`` is the current stream."""
        self._found = []
        call()
        return self._found

    def _note(self, config: Any, kernel: int, arguments: Any) -> None:
        sizes = _sizes(list(self._wanted)[kernel - 1].signature)
        # Parameters of unknown size are like no others.
        passed = [ctypes.string_at(arguments[i], size) if size else os.urandom(16) for i, size in enumerate(sizes)]
        words = b"".join(one + bytes(-len(one) % 4) for one in passed)
        self._found.append((kernel, config[0].stream, tuple(config[0].sizes), words))


@functools.cache
def _sizes(signature: str) -> list[int]:
    """The bytes of each parameter of a kernel; 0 for one that is no struct."""
    found = [_PARAMETER.match(line) for line in lines(signature.removeprefix("*"))]
    return [int(parameter[1] or 0) for parameter in found if parameter] or [0]


def compiled_driver(cuda_arch: str, place: str) -> str:
    """Compile the CUDA driver of a device of an architecture, which need not be there, into a directory; its path.

    Preloaded (``LD_PRELOAD``), it is found as ``libcuda.so.1`` before the machine's, which PyTorch may load. The
    compiler runs by itself: ``load_jit`` would load the driver here, or take a process that imports torch.

    Raises:
        ToolchainNotFoundError: there is no host compiler.
        RecordingError: it failed, with what it says.
    """
    major, minor = arch.parse_cuda_target(cuda_arch, "--cuda-arch").cuda_arch or (0, 0)
    compiler = toolchain.find_cxx("the driver of a recording").path
    library = Path(place, "libcuda.so.1")
    capability = (f"-DSGL_NULL_MAJOR={major}", f"-DSGL_NULL_MINOR={minor}")
    flags = ("-std=c++20", "-O1", "-fPIC", "-shared", "-Wl,-soname,libcuda.so.1")
    command = [str(compiler), *flags, *capability, "-o", str(library), str(_DRIVER)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise RecordingError(f"the driver of a recording cannot be compiled:\n{done.stdout.strip()}")
    return str(library)


def faults(op: Op, sample: Mapping[str, Any], launches: Launches) -> Iterator[str]:
    """The faults of the launches of a call with a sample, in words."""
    import torch

    def call(name: str = "", *layout: Any) -> list[Launch] | None:
        arguments = op.with_out(sample)
        tensors = {name: one for name, one in arguments.items() if isinstance(one, torch.Tensor)}
        shaped = {name: Shaped.of(one) for name, one in tensors.items() if not hasattr(one, "memory")}
        if name:
            shaped[name].set_layout(*layout)
        handed = {name: one.handed_over() for name, one in shaped.items()}
        try:
            return launches.of(lambda: op.function(**{**arguments, **handed}))
        except Exception:  # noqa: BLE001 - it is refused
            return None

    usual = call()
    if any(stream != STREAM for _, stream, *_ in usual or ()):
        remedy = "pass the device of a tensor to host::LaunchKernel, or the stream of LaunchKernel::resolve_device"
        yield f"{op.name} launches on another stream than the caller's current one: {remedy}"
    for name, tensor in sample.items():
        if not usual or not isinstance(tensor, torch.Tensor) or hasattr(tensor, "memory") or tensor.numel() == 0:
            continue
        shape = list(tensor.shape)
        moved = call(name, shape, tensor.stride(), tensor.itemsize)
        if moved and _is_only_moved(usual, moved, tensor.itemsize):
            given = tuple(old[0] - 1 for old, new in zip(usual, moved, strict=True) if old != new)
            launches.odd[given, tensor.itemsize] = f"{op.name} {name}"
        for dim, size in enumerate(shape):
            apart = [*(stride * 4 for stride in tensor.stride()[:-1]), tensor.stride(-1)]
            wider = [stride * 2 if at == dim else stride for at, stride in enumerate(apart)]
            shorter = [one - 1 if at == dim else one for at, one in enumerate(shape)]
            before = call(name, shape, apart) if size > 1 else None
            # A dimension whose size does not matter either is not used.
            if before and call(name, shape, wider) == before and call(name, shorter, apart) != before:
                yield (
                    f"{op.name} neither refuses nor passes on the stride of dimension {dim} of {name}: each launch is "
                    f"the same for {apart[dim]} and for {wider[dim]} in a tensor of the shape {shape}"
                )


def _is_only_moved(usual: Sequence[Launch], moved: Sequence[Launch], by: int) -> bool:
    """Whether launches differ from the usual ones in nothing but addresses, which are some bytes later."""
    before, after = (memoryview(b"".join(one[3] for one in found)).cast("I") for found in (usual, moved))
    is_alike = [one[:3] for one in usual] == [one[:3] for one in moved]
    return is_alike and {new - old for old, new in zip(before, after, strict=True)} == {0, by}
