"""Which device kernels do a family's host parts ask for? Found out without a GPU.

A process of its own starts with a driver that launches nothing (``null_driver``), and calls every op with its
samples, whose tensors are said to be on a CUDA device. NVRTC compiles each kernel that the host parts ask for, and
its parameters are compared with theirs, as before a first launch.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import re
import sys
import tempfile
from typing import Any

import torch

from sgljit_core.builds import policy
from sgljit_core.compilers import arch
from sgljit_core.config import leave_out
from sgljit_core.errors import SgljitError, ToolchainNotFoundError
from sgljit_core.families import discovery, registry
from sgljit_core.families.family import Op

from .memory import memory_of
from .processes import answering, ask
from .subject import Fault, NotApplicable, conditions, described

_KERNEL = re.compile(r"(?P<name>[^<]+?)(?:<(?P<arguments>.*)>)? for sm_")


def dry_run(family: str, cuda_arch: str = "9.0", **environment: str) -> str:
    """Call the ops of a family with a driver without a device, and compare what they ask for with its ``variants``.

    Args:
        family: its name.
        cuda_arch: the architecture of the device that is not there.
        environment: variables of the process that calls them.

    Returns:
        The findings, in words.

    Raises:
        Fault: a kernel that is asked for does not compile or has other parameters, or one that is declared is never
            asked for in this form.
        NotApplicable: NVRTC is missing, no op asks for a kernel, or the driver's path cannot be preloaded.
    """
    with tempfile.TemporaryDirectory(prefix="sgljit-driver-") as place:
        if re.search(r"[\s:{}]", place):
            raise NotApplicable(f"LD_PRELOAD takes no path with a space, a colon or a brace: {place}")
        (driver,) = ask("null_driver", cuda_arch, place)
        hidden = {"CUDA_VISIBLE_DEVICES": "", "LD_PRELOAD": driver["path"]}
        answers = ask("dry_run", family, cuda_arch, **hidden, **environment)
    for answer in answers:
        if "missing" in answer:
            raise NotApplicable(answer["missing"])
    errors = [answer["error"] for answer in answers if "error" in answer]
    if errors:
        raise Fault("\n".join(errors))
    asked = {kernel for answer in answers for kernel in answer.get("asked", ())}
    stopped = "; ".join(answer["stopped"] for answer in answers if "stopped" in answer)
    if not asked:
        raise NotApplicable(f"no host part asks for a kernel. {stopped}")
    forms = {(name, form) for name, form in map(_form, asked)}
    names = {name for name, _ in forms}
    declared = {kernel for answer in answers for kernel in answer.get("declared", ())}
    lost = sorted(kernel for kernel in declared if _form(kernel)[0] in names and _form(kernel) not in forms)
    if lost:
        name = _form(lost[0])[0]
        example = next(kernel for kernel in sorted(asked) if _form(kernel)[0] == name)
        raise Fault(
            f"variants() declares {lost[0]}, and the host part asks for {example}: what is built ahead is not found"
        )
    unseen = sorted({_form(kernel)[0] for kernel in declared} - names)
    also = f"; no sample asks for {', '.join(unseen)}, which variants() declares" if unseen else ""
    also += f"; not called to the end: {stopped}" if stopped else ""
    return f"{len(asked)} kernels are asked for, of which variants() declares {len(asked & declared)}{also}"


def _form(kernel: str) -> tuple[str, tuple[str, ...]]:
    """A kernel's name, and of which kind each template argument is."""
    match = _KERNEL.match(kernel)
    assert match is not None, kernel
    arguments = (match["arguments"] or "").split(", ")
    return match["name"], tuple(
        "bool" if argument in ("true", "false") else "int" if re.fullmatch(r"-?\d+u?", argument) else "type"
        for argument in arguments
    )


class _Asked(logging.Handler):
    """The kernels that were loaded, by the log."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.kernels: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        data: dict[str, Any] = getattr(record, "sgljit", {})
        if data.get("event") == "loaded" and " for sm_" in data["build"]:
            self.kernels.append(_without_plugin(data["build"]))


class _OnDevice:
    """A tensor of the CPU that says, by DLPack, that it is on a CUDA device: type 2, or 13 for managed memory."""

    def __init__(self, tensor: torch.Tensor, device_type: int = 2) -> None:
        self._tensor, self._device_type = tensor, device_type

    def __dlpack__(self, **_options: Any) -> Any:
        capsule = self._tensor.__dlpack__()
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        # A DLTensor begins with its data's address and the device's type.
        type_ = ctypes.c_int32.from_address(get(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p))
        type_.value = self._device_type
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device_type, 0


def _on_device(value: Any) -> Any:
    import tvm_ffi

    if not isinstance(value, torch.Tensor) or memory_of(value) is not value:
        return value
    return tvm_ffi.from_dlpack(_OnDevice(value))


def main(file: str, family: str, cuda_arch: str) -> None:
    """Call every op, in this process, and write what it asked for to a file."""
    answer = answering(file)
    leave_out("LD_PRELOAD")  # compilers need no driver
    target = arch.parse_cuda_target(cuda_arch, "--cuda-arch")
    assert target.cuda_arch is not None
    arch.pretend(target)
    handler, logger = _Asked(), logging.getLogger("sgljit")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    spec = discovery.load(family)
    with conditions(), arch.override_cuda_arch(*target.cuda_arch):
        for op in spec.declared().values():
            handler.kernels.clear()
            said: dict[str, str] = {}
            for sample in op.samples(torch.device("cpu")) if op.samples is not None else ():
                said = {**_call(op, sample), **said}  # of the samples that stop, the first is enough
                if said.keys() - {"stopped"}:
                    break
            answer(**said)
            answer(asked=sorted(set(handler.kernels)))
        try:
            answer(declared=_declared(family) if spec.variants else [])
        except SgljitError as error:
            answer(error=f"variants(): {error}")


def _call(op: Op, sample: dict[str, Any]) -> dict[str, str]:
    """Call an op on a device that is not there; what stopped it."""
    try:
        op.function(**{name: _on_device(value) for name, value in op.with_out(sample).items()})
    except ToolchainNotFoundError as error:
        return {"missing": str(error)}
    except Exception as error:  # noqa: BLE001 - any other is reported, too
        text = f"{op.name}: {type(error).__name__}: {error}: {described(sample)}"
        is_fault = isinstance(error, SgljitError) and not isinstance(error, ValueError)
        return {"error" if is_fault else "stopped": text}
    return {}


def _declared(family: str) -> list[str]:
    """The kernels among a family's variants, by their labels. Compiles nothing."""
    labels: list[str] = []
    for builder in registry.declared_variants(family):
        with contextlib.suppress(ValueError):  # it is loaded: the host part
            labels.append(policy.why(builder).build)
    return [_without_plugin(label) for label in labels if " for sm_" in label]


def _without_plugin(label: str) -> str:
    return re.sub(r"( for sm_\w+) of .*", r"\1", label)


if __name__ == "__main__":
    main(*sys.argv[1:])
