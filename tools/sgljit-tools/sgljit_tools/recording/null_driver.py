"""Where is the CUDA driver without a device? Compiled where the caller says, since it must outlast this process.

A process takes it in place of the machine's driver if it is preloaded (``LD_PRELOAD``): a look for ``libcuda.so.1``
ends at the library of that name that was loaded first, and PyTorch may load the machine's.
"""

from __future__ import annotations

import functools
from pathlib import Path

from sgljit_core import load_jit, why
from sgljit_core.compilers import arch
from sgljit_tools.errors import RecordingError


def compiled(cuda_arch: str, place: str) -> str:
    """Compile the driver of a device of an architecture below a directory; its path. It stays loaded here."""
    major, minor = arch.parse_cuda_target(cuda_arch, "--cuda-arch").cuda_arch or (0, 0)
    build = functools.partial(
        load_jit,
        "null_driver",
        csrc=Path(__file__).parent / "csrc",
        cpp_files=["null_driver.cpp"],
        extra_cflags=[f"-DSGL_NULL_MAJOR={major}", f"-DSGL_NULL_MINOR={minor}"],
        extra_ldflags=["-Wl,-soname,libcuda.so.1"],
        header_only=False,
        build_directory=place,
    )
    build()
    artifact = why(build).artifact
    if artifact is None:
        raise RecordingError(f"{place} does not take the driver of a recording")
    return str(artifact / "module.so")
