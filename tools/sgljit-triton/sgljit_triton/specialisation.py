"""What do the arguments of a call specialise? The same rules as Triton's, in a text for each argument.

``*bf16:16`` is a pointer to bfloat16 that 16 divides, ``i32`` an int of 32 bits, ``i64:16`` one of 64 that 16 divides,
``fp32`` a float, ``u1`` a bool; ``=1`` and ``=None`` are values that the kernel is compiled for. The launcher
(``launcher.h``) writes the same texts from the arguments of a launch; this module writes them for tensors without
memory.
"""

from __future__ import annotations

import ast
import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sgljit_core.errors import InvalidBuildError

from .source import Parameter

# By the names of torch's dtypes, what Triton calls the type.
TYPES = {
    "bfloat16": "bf16",
    "bool": "u1",
    "float16": "fp16",
    "float32": "fp32",
    "float64": "fp64",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e5m2": "fp8e5",
    **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
}
# The options of a launch besides a kernel's constants, each with the values that are allowed.
_OPTIONS: Mapping[str, Any] = {
    "num_warps": (1, 2, 4, 8, 16, 32),
    "num_stages": range(1, 65),
    "maxnreg": range(1, 256),
    "enable_fp_fusion": (False, True),
    "launch_pdl": (False, True),
}


def of(value: Any, kind: str) -> str:
    """The text of an argument, where ``kind`` is its parameter's. Raises TypeError for what no kernel takes."""
    if value is None:
        return "=None"
    if isinstance(value, bool):
        return "u1"
    if isinstance(value, int):
        if value == 1 and kind != "n":
            return "=1"
        if not -(1 << 63) <= value < 1 << 63:
            raise TypeError(f"an int outside of int64, {value}")
        return ("i32" if -(1 << 31) <= value < 1 << 31 else "i64") + _aligned(value, kind)
    if isinstance(value, float):
        return "fp32"
    dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
    if dtype not in TYPES:
        raise TypeError(f"expected a tensor, int, float, bool or None, got {type(value).__name__} {dtype}".rstrip())
    return f"*{TYPES[dtype]}{_aligned(address(value), kind)}"


_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_BYTE_OFFSET = 40  # in a DLTensor, which begins with the address


def address(tensor: Any) -> int:
    """The address of a tensor's first element; a tensor of tvm-ffi 0.1.11 says it by DLPack alone."""
    if hasattr(tensor, "data_ptr"):
        return int(tensor.data_ptr())
    capsule = tensor.__dlpack__()
    place = _pointer_of(capsule, b"dltensor")
    data = ctypes.c_void_p.from_address(place).value or 0
    return data + ctypes.c_uint64.from_address(place + _BYTE_OFFSET).value


def _aligned(value: int, kind: str) -> str:
    return ":16" if kind == "s" and value % 16 == 0 else ""


def constants(
    where: str, parameters: Sequence[Parameter], given: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, Any]]:
    """The texts of a kernel's constants, with their defaults, and the options of its launch.

    Raises InvalidBuildError: a name is unknown or missing, or a value cannot be written down.
    """
    names = {parameter.name: parameter.default for parameter in parameters if parameter.is_constexpr}
    unknown = sorted(given.keys() - names.keys() - _OPTIONS.keys())
    if unknown:
        known = ", ".join([*names, *_OPTIONS])
        raise InvalidBuildError(f"{where}: {', '.join(unknown)} is no constant of it and no option; it has {known}")
    missing = [name for name, default in names.items() if default is None and name not in given]
    if missing:
        raise InvalidBuildError(f"{where}: bind() lacks a value for {', '.join(missing)}")
    texts = {name: _literal(where, name, given[name]) if name in given else str(names[name]) for name in names}
    options = {name: value for name, value in given.items() if name in _OPTIONS}  # also what the body reads, as Triton
    for name, value in options.items():
        allowed = _OPTIONS[name]
        if value not in allowed or type(value) is not type(allowed[0]):
            raise InvalidBuildError(f"{where}: {name}={value!r}; expected one of {_shown(allowed)}")
    return texts, dict(sorted(options.items()))


def _literal(where: str, name: str, value: Any) -> str:
    """The text of a constant, which ``ast.literal_eval`` reads."""
    is_plain = value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value))
    if isinstance(value, tuple):
        return f"({', '.join(_literal(where, name, one) for one in value)}{',' * (len(value) == 1)})"
    if not is_plain:
        raise InvalidBuildError(
            f"{where}: {name}={value!r}; a constant is an int, a finite float, a bool, a str, None, or a tuple of these"
        )
    text = repr(value)
    assert ast.literal_eval(text) == value
    return text


def _shown(allowed: Any) -> str:
    return f"{allowed[0]} to {allowed[-1]}" if isinstance(allowed, range) else ", ".join(map(str, allowed))
