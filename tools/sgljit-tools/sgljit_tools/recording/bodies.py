"""Calls of ops whose body is Python, with tensors that say that they are on a CUDA device, and have no memory."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from sgljit_tools.errors import RecordingError

_CUDA = torch.device("cuda", 0)


class OnCuda(torch.Tensor):
    """A meta tensor that says that it is on a CUDA device."""

    device, is_cuda, is_meta = property(lambda _: _CUDA), True, False


class _Pretending(TorchFunctionMode):
    """PyTorch's functions make such tensors from such tensors, and where a CUDA device is named."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*map(_meant, args), **{name: _meant(value) for name, value in (kwargs or {}).items()})
        return made.as_subclass(OnCuda) if isinstance(made, torch.Tensor) and made.is_meta else made


def _meant(value: Any) -> Any:
    if isinstance(value, torch.device | str) and str(value).startswith("cuda"):
        return "meta"
    if isinstance(value, list | tuple):
        return [*map(_meant, value)]
    return value.as_subclass(torch.Tensor) if isinstance(value, OnCuda) else value


def call(op: Callable[..., Any], arguments: Mapping[str, Any], error: Exception) -> None:
    """Call an op's body in Python, which has raised an error for tensors of tvm-ffi; raise that if the body is not."""
    body = inspect.unwrap(op)
    if not any(frame.f_code is body.__code__ for frame, _ in traceback.walk_tb(error.__traceback__)):
        raise error
    with torch.no_grad(), _Pretending():
        made = body(**{name: one.to("cuda") if torch.is_tensor(one) else one for name, one in arguments.items()})
    if any(not one.is_cuda for one in (made if isinstance(made, tuple) else (made,)) if torch.is_tensor(one)):
        raise RecordingError(f"{op.__name__} gets tensors on CUDA, and returns one on the CPU: pass device=x.device")
