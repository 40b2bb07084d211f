"""Tensors without memory: addresses that are reserved, and a shape that changes from call to call.

They are handed over by DLPack, whose shapes belong to the producer: a new number of tokens is written in place. A call
then costs microseconds, where a new tensor for each would cost several times that.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
from typing import Any

from sgljit_core import TOKENS, Addresses, TensorSpec
from sgljit_tools.errors import RecordingError

MOST_TOKENS = 16384
_PLACE = 1 << 38  # bytes of addresses; few pages of them are ever touched
_NO_RESERVE = 0x4000  # MAP_NORESERVE, which the module mmap does not name
_ALIGNMENT = 512

_CPU, _CUDA, _CUDA_HOST = 1, 2, 3  # DLDeviceType
_DTYPES = {  # DLDataTypeCode, bits
    "bool": (6, 8),
    "uint8": (1, 8),
    "int8": (0, 8),
    "int16": (0, 16),
    "int32": (0, 32),
    "int64": (0, 64),
    "uint16": (1, 16),
    "uint32": (1, 32),
    "uint64": (1, 64),
    "float16": (2, 16),
    "float32": (2, 32),
    "float64": (2, 64),
    "bfloat16": (4, 16),
    "float8_e4m3fn": (10, 8),
    "float8_e5m2": (12, 8),
}


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Shaped:
    """A tensor without memory.

    Attributes:
        varies: whether its shape has the number of tokens.
    """

    def __init__(self, spec: TensorSpec, address: int, device: tuple[int, int]) -> None:
        rank = len(spec.shape)
        self._shape = (ctypes.c_int64 * rank)(*(MOST_TOKENS if size == TOKENS else size for size in spec.shape))
        strides = spec.strides or itertools.accumulate((1, *reversed(self._shape[1:])), int.__mul__)
        self._strides = (ctypes.c_int64 * rank)(*(spec.strides or reversed(list(strides)[:rank])))
        self._dims = [i for i, size in enumerate(spec.shape) if size == TOKENS]
        self.varies = bool(self._dims)
        self._device = device
        code, bits = _dtype(spec)
        tensor = _DLTensor(address, *device, rank, code, bits, 1, self._shape, self._strides, 0)
        self._managed = _DLManagedTensor(tensor, None, None)

    def set_tokens(self, tokens: int) -> None:
        """Change the number of tokens."""
        for dim in self._dims:
            self._shape[dim] = tokens

    def __dlpack__(self, **_options: Any) -> Any:
        return _new_capsule(ctypes.addressof(self._managed), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def _dtype(spec: TensorSpec) -> tuple[int, int]:
    """The code of DLPack, and the bits."""
    if spec.dtype not in _DTYPES:
        raise RecordingError(f"TensorSpec: unknown dtype {spec.dtype!r}; known are {', '.join(_DTYPES)}")
    return _DTYPES[spec.dtype]


def bytes_of(spec: TensorSpec) -> int:
    """The bytes from the begin of its memory to its end, with the most tokens."""
    sizes = [MOST_TOKENS if size == TOKENS else size for size in spec.shape]
    item = _dtype(spec)[1] // 8
    if spec.strides is None:
        count = 1
        for size in sizes:
            count *= size
        return (spec.offset + count) * item
    return (spec.offset + 1 + sum((size - 1) * stride for size, stride in zip(sizes, spec.strides, strict=True))) * item


class Place:
    """Addresses for the tensors of one call after the other: half of them of the device, half of pinned host memory.

    Attributes:
        pinned: the begin and the end of the addresses of pinned host memory.

    Raises:
        RecordingError: this process gets no addresses.
    """

    def __init__(self) -> None:
        try:
            self._memory = mmap.mmap(-1, 2 * _PLACE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        except OSError as error:
            raise RecordingError(f"{2 * _PLACE >> 30} GiB of addresses cannot be reserved: {error}") from error
        self._begin = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.pinned = self._begin + _PLACE, self._begin + 2 * _PLACE
        self.clear()

    def clear(self) -> None:
        """Begin the next call: its tensors take the addresses of those of the last one."""
        self._next = {False: self._begin, True: self.pinned[0]}

    def address(self, spec: TensorSpec) -> int:
        """Addresses for a tensor; that of its first element."""
        start = self._next[spec.pinned]
        self._next[spec.pinned] = start + -(-bytes_of(spec) // _ALIGNMENT) * _ALIGNMENT
        if self._next[spec.pinned] > self._begin + (_PLACE if not spec.pinned else 2 * _PLACE):
            raise RecordingError(f"the tensors of a call have more than {_PLACE >> 30} GiB together")
        return start + spec.offset * _dtype(spec)[1] // 8

    def tensor(self, spec: TensorSpec | Addresses, device: str) -> Shaped:
        """A tensor on the call's device, "cuda" or "cpu"."""
        if isinstance(spec, Addresses):
            table = TensorSpec((spec.count,), "uint64")
            address = self.address(table)
            for i in range(spec.count):
                ctypes.c_uint64.from_address(address + 8 * i).value = self.address(spec.of)
            return Shaped(table, address, (_CUDA if device == "cuda" and spec.on_device else _CPU, 0))
        on_host = _CUDA_HOST if device == "cuda" else _CPU
        kind = on_host if spec.pinned or device == "cpu" else _CUDA
        return Shaped(spec, self.address(spec), (kind, 0))
