"""One device kernel by its name, for tests of kernels that no sample asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sgljit_core import KernelFamily, make_cpp_args, paths
from sgljit_core.jit import kernels
from sgljit_core.load.cubin import Cubin


def build_variant(
    family: KernelFamily, file: str, kernel: str, *args: Any, build_directory: str | Path | None = None
) -> Cubin:
    """A device kernel for the current target, from the cache or made now. Needs no GPU. Raises as ``load_jit`` does.

    >>> with override_cuda_arch(9, 0):
    ...     build_variant(FAMILY, "rmsnorm.cuh", "rmsnorm::kernel", 4096, True, torch.bfloat16)

    Args:
        file: the device file, relative to the family's ``csrc``.
        kernel: the kernel's name, with its namespace.
        args: its template arguments, as the host part passes them; ``make_cpp_args`` lists their types.
        build_directory: the root of the cache, as in ``load_jit``.
    """
    sources = kernels.Sources(family.name, family.csrc, paths.build_root(build_directory))
    return kernels.build_kernel(sources, file, f"{kernel}<{make_cpp_args(*args)}>" if args else kernel)
