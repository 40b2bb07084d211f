"""Tensors for ops whose body is Python: they say that they are on a CUDA device, and have no memory."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CUDA = torch.device("cuda", 0)


class OnCuda(torch.Tensor):
    """A meta tensor that says that it is on a CUDA device."""

    device = property(lambda self: _CUDA)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_meta = property(lambda self: False)  # type: ignore[assignment]


class _Pretending(TorchFunctionMode):
    """What PyTorch's functions make of such tensors, or on a CUDA device, are such tensors."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _said(function(*map(_meant, args), **{name: _meant(value) for name, value in (kwargs or {}).items()}))


def _meant(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.as_subclass(torch.Tensor)
    if isinstance(value, list | tuple):
        return [_meant(one) for one in value]
    return "meta" if isinstance(value, torch.device | str) and str(value).startswith("cuda") else value


def _said(value: Any) -> Any:
    if type(value) in (list, tuple):
        return [_said(one) for one in value]
    return value.as_subclass(OnCuda) if isinstance(value, torch.Tensor) and value.is_meta else value


def raised(function: Callable[..., Any], error: Exception) -> bool:
    """Whether the body of an op is Python, and raised the error or what led to it."""
    code = inspect.unwrap(function).__code__
    return any(frame.f_code is code for frame, _ in traceback.walk_tb(error.__traceback__))


def call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Call the body of an op with its tensors on a CUDA device that need not be there."""
    passed = {n: v.to("meta").as_subclass(OnCuda) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    with torch.no_grad(), _Pretending():
        inspect.unwrap(function)(**passed)
