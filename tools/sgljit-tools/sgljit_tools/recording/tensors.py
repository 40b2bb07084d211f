"""Tensors without memory: addresses that are reserved, and a shape that changes from call to call.

DLPack hands them over, and leaves the shape to the producer: a new number of tokens is written in place, in no time.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
from collections.abc import Sequence
from typing import Any

from sgljit_core import TOKENS, Addresses, TensorSpec
from sgljit_tools.errors import RecordingError

MOST_TOKENS = 16384
_PLACE = 1 << 38  # bytes of addresses; few pages of them are ever touched
_LOW = 1 << 32  # below it sgl_kernel/export.h takes addresses for offsets
NO_RESERVE = 0x4000  # MAP_NORESERVE, which the module mmap does not name
_ALIGNMENT = 512

_CPU, _CUDA, _CUDA_HOST = 1, 2, 3  # DLDeviceType


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
    """A tensor without memory of its own. It must live as long as what is ``handed_over``.

    Attributes:
        varies: whether its shape has the number of tokens.
    """

    def __init__(self, spec: TensorSpec, address: int, device: tuple[int, int], dtype: Any = None) -> None:
        rank = len(spec.shape)
        dtype = dtype or _dtype(spec)
        self._shape, self._strides = ((ctypes.c_int64 * rank)(*numbers) for numbers in _most(spec))
        self._dims = [i for i, size in enumerate(spec.shape) if size == TOKENS]
        self.varies = bool(self._dims)
        self._device = device
        kind = dtype.type_code, dtype.bits, dtype.lanes
        tensor = _DLTensor(address, *device, rank, *kind, self._shape, self._strides, 0)
        self._managed = _DLManagedTensor(tensor, None, None)

    @classmethod
    def of(cls, tensor: Any) -> Shaped:
        """A tensor of the CPU, said to be on a CUDA device. A low heap's addresses, which no device has, are moved."""
        import tvm_ffi

        spec = TensorSpec(tuple(tensor.shape), str(tensor.dtype), tensor.stride())
        address = tensor.data_ptr()
        moved = address + _LOW if address < _LOW else address
        return cls(spec, moved, (_CUDA, 0), tvm_ffi.from_dlpack(tensor).dtype)

    def set_layout(self, shape: Sequence[int], strides: Sequence[int], skipped: int = 0) -> None:
        """Change the shape and the strides, and skip bytes once."""
        self._managed.tensor.data += skipped
        self._shape[:], self._strides[:] = list(shape), list(strides)

    def set_tokens(self, tokens: int) -> None:
        """Change the number of tokens."""
        for dim in self._dims:
            self._shape[dim] = tokens

    def handed_over(self) -> Any:
        """A tensor of tvm-ffi, whose shape follows ``set_tokens`` and ``set_layout``."""
        import tvm_ffi

        return tvm_ffi.from_dlpack(self)

    def __dlpack__(self, **_options: Any) -> Any:
        return _new_capsule(ctypes.addressof(self._managed), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def _dtype(spec: TensorSpec) -> Any:
    """The dtype as tvm-ffi has it, with the code and the bits of DLPack."""
    import tvm_ffi

    with contextlib.suppress(ValueError):
        dtype = tvm_ffi.dtype(spec.dtype)
        if dtype.bits in (8, 16, 32, 64):  # it takes every number behind such a name as float
            return dtype
    raise RecordingError(f"TensorSpec: unknown dtype {spec.dtype!r}; expected such as 'float16'")


def _most(spec: TensorSpec) -> tuple[list[int], list[int]]:
    """The shape with the most tokens, and its strides."""
    shape = [MOST_TOKENS if size == TOKENS else size for size in spec.shape]
    return shape, list(spec.strides or (math.prod(shape[i + 1 :]) for i in range(len(shape))))


class Place:
    """Addresses for the tensors of one call after the other: half of them of the device, half of pinned host memory.

    Attributes:
        pinned: the begin and the end of the addresses of pinned host memory.
    """

    def __init__(self) -> None:
        try:
            self._memory = mmap.mmap(-1, 2 * _PLACE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
        except OSError as error:
            raise RecordingError(f"{2 * _PLACE >> 30} GiB of addresses cannot be reserved: {error}") from error
        self._begin = begin = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.pinned = begin + _PLACE, begin + 2 * _PLACE
        self.clear()

    def clear(self) -> None:
        """Begin the next call: its tensors take the addresses of those of the last one."""
        self._next = {False: self._begin, True: self.pinned[0]}

    def _address(self, spec: TensorSpec) -> int:
        """The address of the first element of a tensor, which no other tensor of the call shares."""
        start, item = self._next[spec.pinned], int(_dtype(spec).itemsize)
        last = sum((size - 1) * stride for size, stride in zip(*_most(spec), strict=True))
        end = start + (spec.offset + 1 + last) * item
        if end > self.pinned[spec.pinned]:
            raise RecordingError(f"the tensors of a call have more than {_PLACE >> 30} GiB together")
        self._next[spec.pinned] = -(-end // _ALIGNMENT) * _ALIGNMENT
        return start + spec.offset * item

    def tensor(self, spec: TensorSpec | Addresses, device: str) -> Shaped:
        """A tensor on the call's device, "cuda" or "cpu"."""
        if isinstance(spec, Addresses):
            table = TensorSpec((spec.count,), "uint64")
            address = self._address(table)
            for i in range(spec.count):
                ctypes.c_uint64.from_address(address + 8 * i).value = self._address(spec.of)
            return Shaped(table, address, (_CUDA if device == "cuda" and spec.on_device else _CPU, 0))
        return Shaped(spec, self._address(spec), (_CPU if device == "cpu" else _CUDA_HOST if spec.pinned else _CUDA, 0))
