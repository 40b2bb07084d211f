"""Which target do we compile for?

In this order: ``override_cuda_arch``, ``SGLJIT_CUDA_ARCH``, ``TVM_FFI_CUDA_ARCH_LIST`` if it has one entry, the current
device. Every build asks again, and no answer is kept for the process: two devices may differ.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from sgljit_core.config import settings
from sgljit_core.errors import ConfigError, NoTargetError
from sgljit_core.specs.build import Target

CPU = Target(f"cpu-{platform.machine()}")  # of a module without CUDA code
_override: ContextVar[Target | None] = ContextVar("sgljit_cuda_arch", default=None)


def cuda_target() -> Target:
    """The target of a module with CUDA code. Raises NoTargetError without override, variable and device."""
    if (override := _override.get()) is not None:
        return override
    config = settings()
    if config.cuda_arch is not None:
        return parse_cuda_target(config.cuda_arch, config.cuda_arch_source)
    import torch

    if not torch.cuda.is_available():
        raise NoTargetError(
            "no GPU to compile for; name the target instead: --cuda-arch 9.0 (AMD: gfx90a) on the command line, "
            "SGLJIT_CUDA_ARCH=9.0 in the environment, or override_cuda_arch(9, 0) in Python"
        )
    return _of_device()


_pretended: list[Target] = []


def pretend(target: Target) -> None:
    """Treat every device of this process as one of this target: for a dry run, which has no device."""
    _pretended[:] = [target]


def device_target(device_id: int) -> Target:
    """The target of one device of this machine for a variant, ignoring overrides. Raises NoTargetError."""
    return exact(_pretended[0] if _pretended else _of_device(device_id))


def _of_device(*device_id: int) -> Target:
    """The target of a device of torch, by default of the current one."""
    import torch

    if torch.version.hip is None:
        return _target(*torch.cuda.get_device_capability(*device_id))
    name = torch.cuda.get_device_properties(*device_id or (torch.cuda.current_device(),)).gcnArchName
    return Target(name.partition(":")[0], is_rocm=True)  # of "gfx90a:sramecc+:xnack-"


def exact(target: Target) -> Target:
    """The target that a device of the same compute capability gets, for a variant. Raises NoTargetError for AMD's."""
    if target.cuda_arch is None:
        raise NoTargetError(
            f"instant variants are for NVIDIA's GPUs, which NVRTC compiles for; the target is {target.name}. On ROCm "
            f"write a __global__ kernel in a .cu file and load it with load_jit, which hipcc compiles"
        )
    return _target(*target.cuda_arch)


def target_in_use() -> Target | None:
    """The target of the current device, or None if this process does not use CUDA yet."""
    return None if cuda_in_use() is None else _of_device()


def cuda_in_use() -> Any | None:
    """``torch.cuda``, or None if this process does not use CUDA yet. Neither imports torch nor touches a GPU."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)  # missing while another thread imports torch
    return cuda if cuda is not None and cuda.is_initialized() else None


def override_cuda_arch(major: int, minor: int, suffix: str | None = None) -> AbstractContextManager[Target]:
    """Compile for another architecture inside the ``with`` block, with or without a GPU.

    Args:
        major, minor: the compute capability, such as 9, 0.
        suffix: "a" (architecture-specific), "f" (family-specific) or "" (portable); by default "a" from 9.0 on,
            which unlocks wgmma and similar instructions.
    """
    return override_target(_target(major, minor, suffix))


@contextmanager
def override_target(target: Target) -> Iterator[Target]:
    """``override_cuda_arch`` for a target."""
    token = _override.set(target)
    try:
        yield target
    finally:
        _override.reset(token)


def is_arch_support_pdl() -> bool:
    """Whether the CUDA target has programmatic dependent launch (compute capability 9.0 and later)."""
    return (cuda_target().cuda_arch or (0, 0)) >= (9, 0)


def scope() -> Target | None:
    """The target as a part of a cached module's key; None if all devices have the same target.

    Never initialises CUDA.
    """
    if (override := _override.get()) is not None:
        return override
    cuda = cuda_in_use()
    if cuda is None or cuda.device_count() < 2:
        return None
    return None if len({_of_device(i) for i in range(cuda.device_count())}) == 1 else cuda_target()


def parse_cuda_target(text: str, source: str) -> Target:
    """The target that ``text`` names ("8.0", "9.0a", "sm_100f", "gfx90a"); ``source`` names its origin in the error."""
    if re.fullmatch(r"gfx[0-9a-f]{3,5}", text):
        return Target(text, is_rocm=True)
    match = re.fullmatch(r"(?:sm_)?(?:(\d+)\.(\d)|(\d+)(\d))([af]?)", text)
    if match is None:
        several = len(re.split(r"[ ,;]+", text)) > 1
        problem = "names several architectures, but a module is compiled for one" if several else "is no architecture"
        raise ConfigError(f'{source}={text!r} {problem}; expected one such as "8.0", "9.0a" or "10.0f"')
    return _target(int(match[1] or match[3]), int(match[2] or match[4]), match[5] or None)


def _target(major: int, minor: int, suffix: str | None = None) -> Target:
    if suffix is None:
        suffix = "a" if major >= 9 else ""
    return Target(f"sm_{major}{minor}{suffix}", (major, minor))
