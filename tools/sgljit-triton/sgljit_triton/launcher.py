"""How is a kernel launched from C++? The launcher (``launcher.h``) is compiled once for each family, as a module of it.

It asks here for a variant that it has not met, with the texts of ``specialisation`` and a device. Nothing here is on
the way of a second launch.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sgljit_core import KernelFamily, cache_once
from sgljit_core.compilers import arch
from sgljit_core.load import gpu
from sgljit_core.load.exceptions import passing
from sgljit_core.machine.forks import OncePerKey
from sgljit_core.specs.build import Target

from .build import Compiled

if TYPE_CHECKING:
    from tvm_ffi import Module

Find = Callable[[Sequence[str], Target], tuple[Compiled, str]]

_WRAPPERS = [("bind", "sgljit_triton::bind")]


class _Loaded(ctypes.Structure):
    """A loaded kernel, as the launcher reads it (``sgljit_triton::Loaded``). It lives as long as the process."""

    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("threads", ctypes.c_uint32),
        ("shared", ctypes.c_uint32),
        ("extra", ctypes.c_uint32),
        ("pdl", ctypes.c_uint32),
    )


_tokens = itertools.count(1)
_finders: dict[int, Find] = {}
_loaded: OncePerKey[tuple[int, str, int], _Loaded] = OncePerKey()


@cache_once
def load(family: KernelFamily) -> Module:
    """The launcher of a family, loaded once; in a recording, what stands for it. Raises as ``load_jit`` does."""
    module = family.load_jit(
        "triton_launcher",
        cpp_sources="#include <sgljit_triton/launcher.h>",
        cpp_wrappers=_WRAPPERS,
        extra_include_paths=[Path(__file__).resolve().parent / "include"],
    )
    _register()
    return module


def bind(module: Module, name: str, kinds: str, find: Find) -> Callable[..., int | None]:
    """The function that launches a kernel: it takes the three numbers of a grid, and the arguments.

    It returns 1, and has launched nothing, where the tensors are the CPU's.

    Args:
        kinds: of the kernel's parameters that are no constants, see ``source.Parameter``.
        find: returns the kernel for the texts of its arguments and a target, and the build's label.
    """
    token = next(_tokens)
    _finders[token] = find
    return functools.partial(module.launch, module.bind(token, name, kinds))


@functools.cache
def _register() -> None:
    import tvm_ffi

    tvm_ffi.register_global_func("sgljit.triton", passing(_answer), override=True)


def _answer(token: int, text: str, device_id: int) -> int:
    """The address of what the launcher needs to know of a variant. Called from C++, by any thread."""

    def make() -> _Loaded:
        compiled, label = _finders[token](text.split(" ") if text else [], arch.device_target(device_id))
        kernel = gpu.load_kernel(compiled.image, compiled.symbol, device_id, label, f"Triton {compiled.triton}")
        return _Loaded(kernel, 32 * compiled.warps, compiled.shared, compiled.extra, compiled.pdl)

    return ctypes.addressof(_loaded.get((token, text, device_id), make))
