"""How does a Python value become a C++ template argument?"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import torch

    CppArg: TypeAlias = "int | float | bool | torch.dtype | CppEnum | CppType"


# The type aliases of sgl_kernel/device.cuh.
_DTYPES = {
    "float64": "double",
    "float32": "fp32_t",
    "float16": "fp16_t",
    "bfloat16": "bf16_t",
    "float8_e4m3fn": "fp8_e4m3_t",
    "float8_e5m2": "fp8_e5m2_t",
    "bool": "bool",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


class CppEnum(NamedTuple):
    """A value of a C++ enum as a template argument, by type and number: ``CppEnum("scaling::Mode", value=1)``."""

    type: str
    value: int


class CppType(NamedTuple):
    """A C++ type as a template argument, by its name with namespaces: ``CppType("swiglu::SiluAndMul")``."""

    name: str


class CppArgs(list[str]):
    """C++ template arguments. ``str()`` and f-strings join them: ``f"Kernel<{args}>"``; ``*args`` spreads them."""

    def __str__(self) -> str:
        return ", ".join(self)


def make_cpp_args(*args: CppArg) -> CppArgs:
    """Convert Python values to C++ template arguments.

    >>> str(make_cpp_args(128, True, 0.5))
    '128, true, 0.5'

    Args:
        args: int, float, bool, torch.dtype, CppEnum or CppType.

    Raises:
        TypeError: for any other type.
        ValueError: for an int outside 64 bits, and for a dtype that has no C++ name.
    """
    return CppArgs(_convert(arg) for arg in args)


def _convert(arg: object) -> str:
    if isinstance(arg, bool):  # before int: a bool is an int
        return "true" if arg else "false"
    if isinstance(arg, int):
        return _convert_int(arg)
    if isinstance(arg, CppEnum):
        return f"static_cast<{arg.type}>({_convert_int(arg.value)})"
    if isinstance(arg, CppType):
        return arg.name
    if isinstance(arg, float):
        return _convert_float(arg)
    # A dtype exists only if torch is imported. Another thread may be importing torch at this moment.
    if isinstance(arg, getattr(sys.modules.get("torch"), "dtype", ())):
        name = str(arg).removeprefix("torch.")
        if name not in _DTYPES:
            raise ValueError(f"{arg} has no C++ type in sgl_kernel; expected one of {', '.join(_DTYPES)}")
        return _DTYPES[name]
    raise TypeError(
        f"a C++ template argument must be an int, float, bool, torch.dtype, CppEnum or CppType, "
        f"got {type(arg).__name__}"
    )


def _convert_int(value: int) -> str:
    if not -(2**63) <= value < 2**64:
        raise ValueError(f"{value} does not fit a 64-bit C++ integer")
    if value == -(2**63):  # the literal 9223372036854775808 is not a signed number, so it cannot be negated
        return "(-9223372036854775807 - 1)"
    return f"{value}u" if value >= 2**63 else str(value)


def _convert_float(value: float) -> str:
    """The shortest literal that reads back as the same double."""
    if math.isnan(value):  # as bits, like infinity: NVRTC has no literal and no built-in function for either
        return "__builtin_bit_cast(double, 0x7ff8000000000000ull)"
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_bit_cast(double, 0x7ff0000000000000ull)"
    return repr(value)
