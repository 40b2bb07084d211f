"""Which modules and kernels do calls of a family ask for? They are called, in a process where nothing is launched.

The calls are those of the package's module ``calls``, with every number of tokens, or else the samples of the ops.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sgljit_core import Addresses, Op, TensorSpec
from sgljit_core.builds.recording import Recorder, Wanted, recording
from sgljit_core.compilers import arch
from sgljit_core.errors import SgljitError, TensorMatchError
from sgljit_core.families import loading
from sgljit_core.machine import private
from sgljit_core.paths import cache_root
from sgljit_tools.environment import inherited_environment, leave_out
from sgljit_tools.errors import RecordingError

from .process import ask, question_of, reply
from .tensors import MOST_TOKENS, Place


@dataclass(frozen=True)
class _Question:
    families: tuple[str, ...]
    cuda_arch: str | None
    on_cpu: bool
    ops: frozenset[str] | None
    model: Any
    tokens: Sequence[int]
    samples: bool


@dataclass(frozen=True)
class Recording:
    """The result of a recording.

    Attributes:
        wanted: what ``sgljit_core.jit.kernels.build`` builds, without doubles.
        stopped: the ops of which not all is known, and why, in words: a call with samples raised, or there is no call.
    """

    wanted: tuple[Wanted, ...]
    stopped: tuple[str, ...]


def record(
    families: Iterable[str],
    *,
    cuda_arch: str | None,
    on_cpu: bool,
    ops: frozenset[str] | None = None,
    model: Any = None,
    tokens: Sequence[int] = range(1, MOST_TOKENS + 1),
    samples: bool = False,
    keep: bool = True,
) -> Recording:
    """Call the ops of families where nothing is launched, and return what they ask for.

    Args:
        families: their names.
        cuda_arch: the architecture of a device that need not be there, such as "9.0"; None for no calls on CUDA.
        on_cpu: whether there are calls on the CPU.
        ops: the names of the ops that are called; None for all.
        model: a model's ``ModelShape``; without one the families' usual calls count, and the samples of those ops that
            declare no calls.
        tokens: the numbers of tokens to try.
        samples: whether to call all ops with their samples, and not with their declared calls.
        keep: whether the host parts that are compiled go into the user's cache.

    Raises:
        RecordingError: a call that is declared raises, host parts cannot be compiled, or the process fails.
    """
    question = _Question(tuple(families), cuda_arch, on_cpu, ops, model, tokens, samples)
    environment = {"SGLJIT_JIT": "on"}
    if not keep:
        given = inherited_environment().get("SGLJIT_PREBUILT_PATH")
        prebuilt = os.pathsep.join(filter(None, (str(cache_root()), given)))
        environment |= {"SGLJIT_CACHE_DIR": "{scratch}/cache", "SGLJIT_PREBUILT_PATH": prebuilt}
    with contextlib.ExitStack() as stack:
        if cuda_arch is not None:
            place = stack.enter_context(tempfile.TemporaryDirectory(prefix="driver-", dir=private.process_directory()))
            if re.search(r"[\s:{}]", place):
                raise RecordingError(f"LD_PRELOAD takes no path with a space, a colon or a brace: {place}")
            driver = ask("null_driver", (cuda_arch, place), SGLJIT_JIT="on")
            if isinstance(driver, SgljitError):
                raise driver
            environment |= {"CUDA_VISIBLE_DEVICES": "", "LD_PRELOAD": driver}
        answer = ask("recorder", question, **environment)
    if isinstance(answer, SgljitError):
        raise answer
    assert isinstance(answer, Recording)
    return answer


def main(file: str) -> None:
    """Call the ops, in this process; the answer is a Recording, or an error."""
    question: _Question = question_of(file)
    try:
        reply(file, _record(question))
    except SgljitError as error:
        reply(file, error)


def _record(question: _Question) -> Recording:
    place = Place()
    driver = None
    overridden: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if question.cuda_arch is not None:
        leave_out("LD_PRELOAD")  # compilers need no driver
        target = arch.parse_cuda_target(question.cuda_arch, "--cuda-arch")
        arch.pretend(target)
        overridden = arch.override_target(question.cuda_arch, "--cuda-arch")
        driver = ctypes.CDLL("libcuda.so.1")
    devices = ["cuda"] * (question.cuda_arch is not None) + ["cpu"] * question.on_cpu
    # It takes no argument and changes nothing, whatever it is called with.
    nothing = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
    assert nothing is not None
    stopped: list[str] = []
    with overridden, recording(nothing) as recorder:
        for device in devices:
            if driver is not None:  # on the CPU all memory is the host's
                pinned = place.pinned if device == "cuda" else (1, (1 << 64) - 1)
                driver.sgl_null_driver_pins(*map(ctypes.c_uint64, pinned))
            for family in question.families:
                for op in loading.load(family).declared().values():
                    if question.ops is None or op.name in question.ops:
                        stopped += _call(op, device, question, place)
    return Recording(tuple(_relative(recorder)), tuple(dict.fromkeys(stopped)))


def _relative(recorder: Recorder) -> Iterator[Wanted]:
    """The requests, with the root of the cache left to the process that builds them."""
    own = cache_root()
    for wanted in recorder.wanted:
        yield dataclasses.replace(wanted, root=None) if wanted.root == own else wanted


def _call(op: Op, device: str, question: _Question, place: Place) -> list[str]:
    """Make the calls of an op; what stopped those with samples."""
    if op.calls is None or question.samples:
        return _call_with_samples(op, device) if question.model is None else []
    for arguments in op.calls(question.model):
        place.clear()
        try:
            _call_with_each(op, arguments, device, question.tokens, place)
        except Exception as error:
            if _is_for_another_device(error, device):
                continue
            if isinstance(error, SgljitError) and not isinstance(error, ValueError):  # it says all that there is to say
                raise
            raise RecordingError(
                f"{op.family}.{op.name}: the call that it declares raises {type(error).__name__}: {error}: {arguments}"
            ) from error
    return []


def _call_with_each(op: Op, arguments: Mapping[str, Any], device: str, tokens: Sequence[int], place: Place) -> None:
    import tvm_ffi

    shaped = {
        name: place.tensor(value, device)
        for name, value in arguments.items()
        if isinstance(value, TensorSpec | Addresses)
    }
    passed = {**arguments, **{name: tvm_ffi.from_dlpack(tensor) for name, tensor in shaped.items()}}
    varying = [tensor for tensor in shaped.values() if tensor.varies]
    for number in tokens if varying else (0,):
        for tensor in varying:
            tensor.set_tokens(number)
        op.function(**passed)


def _call_with_samples(op: Op, device: str) -> list[str]:
    import torch

    if op.samples is None:
        return [f"{op.name} has neither samples nor calls"]
    samples = op.samples(torch.device("cpu"))
    stopped = [said for sample in samples if (said := _call_with(op, sample, device)) is not None]
    return stopped[:1]  # the first is enough


def _call_with(op: Op, sample: Mapping[str, Any], device: str) -> str | None:
    """Make a call with a sample; what stopped it, in words."""
    try:
        arguments = op.with_out(sample)
        if device == "cuda":
            arguments = {name: _on_cuda(value) for name, value in arguments.items()}
        op.function(**arguments)
    except Exception as error:
        if _is_for_another_device(error, device):
            return None
        if isinstance(error, SgljitError) and not isinstance(error, ValueError):
            raise
        return f"{op.name}: {type(error).__name__}: {error}"
    return None


def _is_for_another_device(error: Exception, device: str) -> bool:
    """Whether the host part refuses a tensor because the op has no kernels for this kind of device."""
    refused = rf"Device mismatch: expected one of \[[^]]*\] but got {device}"
    return isinstance(error, TensorMatchError) and re.search(refused, str(error)) is not None


class _OnCuda:
    """A tensor of the CPU that says, by DLPack, that it is on a CUDA device."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, **_options: Any) -> Any:
        capsule = self._tensor.__dlpack__()
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        # A DLTensor begins with its data's address and the device's type.
        ctypes.c_int32.from_address(get(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)).value = 2
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


def _on_cuda(value: Any) -> Any:
    import torch
    import tvm_ffi

    is_of_addresses = hasattr(value, "memory")  # by which a sample gives what they lead to
    return tvm_ffi.from_dlpack(_OnCuda(value)) if isinstance(value, torch.Tensor) and not is_of_addresses else value
