"""Do the device kernels that a family's host parts ask for compile, and take what they pass? Found out without a GPU.

The samples of its ops are recorded as calls on a CUDA device, and the kernels that they ask for are made.
"""

from __future__ import annotations

from sgljit_core import parallel_compile
from sgljit_core.errors import ParallelCompileError, SgljitError, ToolchainNotFoundError
from sgljit_core.jit.kernels import build
from sgljit_tools.recording.recorder import record

from .subject import Fault, NotApplicable


def dry_run(family: str, cuda_arch: str = "9.0") -> str:
    """Make the kernels that the samples of a family's ops ask for.

    Args:
        family: its name.
        cuda_arch: the architecture of the device that is not there.

    Returns:
        The findings, in words.

    Raises:
        Fault: a kernel that is asked for does not compile, or does not take what the host part passes; or the calls
            cannot be recorded.
        NotApplicable: a compiler is missing, or no op asks for a kernel.
    """
    try:
        recording = record([family], cuda_arch=cuda_arch, on_cpu=False, samples=True)
    except ToolchainNotFoundError as error:
        raise NotApplicable(str(error)) from error
    except SgljitError as error:
        raise Fault(str(error)) from error
    kernels = [wanted for wanted in recording.wanted if wanted.spec.kernel]
    stopped = f"; not called to the end: {'; '.join(recording.stopped)}" if recording.stopped else ""
    if not kernels:
        raise NotApplicable(f"no host part asks for a kernel{stopped}")
    try:
        parallel_compile([lambda wanted=wanted: build(wanted) for wanted in kernels])  # type: ignore[misc]
    except ParallelCompileError as error:
        missing = [failure for failure in error.failures if isinstance(failure, ToolchainNotFoundError)]
        if missing:
            raise NotApplicable(str(missing[0])) from error
        raise Fault(str(error)) from error
    return f"{len(kernels)} kernels are asked for, and fit{stopped}"
