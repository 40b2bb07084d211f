"""Which modules and kernels do calls of a family ask for? They are called, in a process where nothing is launched.

The calls are those of the package's module ``calls``, with every number of tokens, or else the samples of the ops.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sgljit_core import Addresses, Op, TensorSpec
from sgljit_core.builds.recording import Wanted, recording
from sgljit_core.compilers import arch
from sgljit_core.errors import InvalidBuildError, InvalidFamilyError, SgljitError, TensorMatchError
from sgljit_core.families import loading
from sgljit_core.machine import private
from sgljit_core.paths import cache_root
from sgljit_tools.environment import change, inherited_environment
from sgljit_tools.errors import RecordingError

from . import launches
from .process import in_a_process
from .tensors import MOST_TOKENS, Place, Shaped


class Recording(NamedTuple):
    """The result of a recording.

    Attributes:
        wanted: what ``sgljit_core.jit.kernels.build`` builds, without doubles.
        stopped: by family, why not all is known of an op, in words: a call with samples raised, or there is no call.
        launch_faults: what is wrong with the launches of samples on CUDA, in words.
        odd: places in ``wanted`` of kernels that get a tensor at any address, and the bytes of its element; its name.
    """

    wanted: tuple[Wanted, ...]
    stopped: tuple[tuple[str, str], ...]
    launch_faults: tuple[str, ...] = ()
    odd: tuple[tuple[tuple[tuple[int, ...], int], str], ...] = ()


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
        model: a model's ``ModelShape``; without one the usual calls count, and samples where an op declares none.
        tokens: the numbers of tokens to try.
        samples: whether to call all ops with their samples, and not with their declared calls.
        keep: whether the host parts that are compiled go into the user's cache, and onto a remote that takes them.

    Raises:
        RecordingError: a call that is declared raises, host parts cannot be compiled, or the process fails.
    """
    call = functools.partial(_record, tuple(families), cuda_arch, on_cpu, ops, model, tokens, samples)
    # There is no memory to check, and nothing of a call to follow.
    left_out = ("SGLJIT_CHECK", "SGLJIT_CHECK_INDICES", "SGLJIT_NVTX", "SGLJIT_SYNC", "SGLJIT_TRACE_CALLS")
    warnings = "ignore:CUDA initialization:UserWarning,ignore:Failed to initialize NumPy:UserWarning"  # of torch
    environment = {"SGLJIT_JIT": "on", "PYTHONWARNINGS": warnings, **dict.fromkeys(left_out, "")}
    if not keep:
        own, given = cache_root(), inherited_environment().get("SGLJIT_PREBUILT_PATH")
        tiers = os.pathsep.join(filter(None, (str(own) if own.is_dir() else "", given)))
        environment.update(SGLJIT_CACHE_DIR="{scratch}/cache", SGLJIT_PREBUILT_PATH=tiers, SGLJIT_REMOTE_MODE="read")
    if cuda_arch is None:
        return in_a_process(call, **environment)
    with tempfile.TemporaryDirectory(prefix="driver-", dir=private.process_directory()) as place:
        if re.search(r"[\s:{}]", place):
            raise RecordingError(f"LD_PRELOAD takes no path with a space, a colon or a brace: {place}")
        environment |= {"CUDA_VISIBLE_DEVICES": "", "LD_PRELOAD": launches.compiled_driver(cuda_arch, place)}
        return in_a_process(call, **environment)


def _record(
    families: Sequence[str],
    cuda_arch: str | None,
    on_cpu: bool,
    ops: frozenset[str] | None,
    model: Any,
    tokens: Sequence[int],
    samples: bool,
) -> Recording:
    """``record``, in this process."""
    import tvm_ffi

    place, driver = Place(), None
    overridden: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if cuda_arch is not None:
        change(LD_PRELOAD="")  # compilers need no driver
        arch.pretend(arch.parse_cuda_target(cuda_arch, "--cuda-arch"))
        overridden = arch.override_target(arch.parse_cuda_target(cuda_arch, "--cuda-arch"))
        driver = ctypes.CDLL("libcuda.so.1")
    # It takes no argument and changes nothing, whatever it is called with.
    nothing = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
    assert nothing is not None
    stopped: dict[tuple[str, str], None] = {}
    found: list[str] = []
    # PyTorch would be asked for its stream, and may crash where there is no GPU.
    with overridden, tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), launches.STREAM), recording(nothing) as recorder:
        declared = [op for family in families for op in loading.load(family).declared().values()]
        for device in ["cuda"] * (driver is not None) + ["cpu"] * on_cpu:
            if driver is not None:  # on the CPU all memory is the host's
                pinned = place.pinned if device == "cuda" else (1, (1 << 64) - 1)
                driver.sgl_null_driver_pins(*map(ctypes.c_uint64, pinned))
            for op in declared:
                if ops is not None and op.name not in ops:
                    continue
                if op.calls is not None and not samples:
                    for arguments in op.calls(model):
                        _call_with_each(op, arguments, device, tokens, place)
                elif model is None and (text := _call_with_samples(op, device)):
                    stopped[op.family, text] = None
        odd, wanted_by_samples = {}, tuple(recorder.wanted)
        if samples and driver is not None:
            import torch

            driver.sgl_null_driver_pins(*map(ctypes.c_uint64, place.pinned))
            listener = launches.Launches(driver, recorder.wanted)
            for op in declared:  # of each the faults of the first sample that shows any
                made = op.samples(torch.device("cpu")) if op.samples is not None else ()
                found += next(filter(None, (list(launches.faults(op, sample, listener)) for sample in made)), [])
            odd = listener.odd
    own = cache_root()  # which is left to the process that builds them
    wanted = (one._replace(root=None) if one.root == own else one for one in wanted_by_samples)
    return Recording(tuple(wanted), tuple(stopped), tuple(found), tuple(odd.items()))


def _call_with_each(op: Op, arguments: Mapping[str, Any], device: str, tokens: Sequence[int], place: Place) -> None:
    """Make a declared call with each number of tokens."""
    place.clear()
    try:
        specs = {name: value for name, value in arguments.items() if isinstance(value, TensorSpec | Addresses)}
        shaped = {name: place.tensor(value, device) for name, value in specs.items()}
        passed = {**arguments, **{name: tensor.handed_over() for name, tensor in shaped.items()}}
        varying = [tensor for tensor in shaped.values() if tensor.varies]
        for number in tokens if varying else (0,):
            for tensor in varying:
                tensor.set_tokens(number)
            op.function(**passed)
    except Exception as error:
        if (text := _refusal(error, device)) is not None:
            told = f"the call that it declares raises {text}: {arguments}"
            raise RecordingError(f"{op.family}.{op.name}: {told}") from error


def _call_with_samples(op: Op, device: str) -> str | None:
    """Make a call with each sample; the first that stopped one, in words."""
    import torch

    if op.samples is None:
        return f"{op.name} has neither samples nor calls"
    stopped = [_call_with(op, sample, device) for sample in op.samples(torch.device("cpu"))]
    return next((f"{op.name}: {text}" for text in stopped if text is not None), None)


def _call_with(op: Op, sample: Mapping[str, Any], device: str) -> str | None:
    """Make a call with a sample; what stopped it, in words."""
    import torch

    try:
        arguments = op.with_out(sample)
        if device == "cpu":
            op.function(**arguments)
            return None
        # A tensor of addresses, which a sample gives the ``memory`` that they lead to, stays on the CPU.
        tensors = {name: one for name, one in arguments.items() if isinstance(one, torch.Tensor)}
        shaped = {name: Shaped.of(one) for name, one in tensors.items() if not hasattr(one, "memory")}
        try:
            op.function(**arguments | {name: tensor.handed_over() for name, tensor in shaped.items()})
        except Exception as error:  # noqa: BLE001 - it is raised again
            from . import bodies  # imports torch

            bodies.call(op.function, arguments, error)
    except Exception as error:  # noqa: BLE001 - what it says is the answer
        return _refusal(error, device)
    return None


def _refusal(error: Exception, device: str) -> str | None:
    """The error that stopped a call, in words; None if the op has no kernels for this kind of device."""
    refused = rf"Device mismatch: expected one of \[[^]]*\] but got {device}"
    if isinstance(error, TensorMatchError) and re.search(refused, str(error)):
        return None
    is_refusal = isinstance(error, ValueError) and not isinstance(error, InvalidBuildError | InvalidFamilyError)
    if isinstance(error, SgljitError) and not is_refusal:  # it says all that there is to say
        raise error
    return f"{type(error).__name__}: {error}"
