"""Where is the CUDA driver without a device? Compiled where the caller says, since it must outlast this process.

Preloaded (``LD_PRELOAD``), it is found as ``libcuda.so.1`` before the machine's, which PyTorch may load.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from sgljit_core.compilers import arch, toolchain
from sgljit_tools.errors import RecordingError

_SOURCE = Path(__file__).parent / "csrc" / "null_driver.cpp"


def compiled(cuda_arch: str, place: str) -> str:
    """Compile the driver of a device of an architecture into a directory; its path.

    The compiler runs by itself: ``load_jit`` would load the driver here, or take a process that imports torch.

    Raises:
        ToolchainNotFoundError: there is no host compiler.
        RecordingError: it failed, with what it says.
    """
    major, minor = arch.parse_cuda_target(cuda_arch, "--cuda-arch").cuda_arch or (0, 0)
    compiler = toolchain.find_cxx("the driver of a recording").path
    library = Path(place, "libcuda.so.1")
    capability = (f"-DSGL_NULL_MAJOR={major}", f"-DSGL_NULL_MINOR={minor}")
    flags = ("-std=c++20", "-O1", "-fPIC", "-shared", "-Wl,-soname,libcuda.so.1")
    command = [str(compiler), *flags, *capability, "-o", str(library), str(_SOURCE)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise RecordingError(f"the driver of a recording cannot be compiled:\n{done.stdout.strip()}")
    return str(library)
