"""bench/ports.py: every kernel of a release of SGLang that it counts in compiles as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import isolated
import pytest

from sgljit_core.compilers.toolchain import Toolchain

sys.path.insert(0, str(isolated.ROOT / "bench"))
ports = pytest.importorskip("ports", reason="not a checkout")


def test_includes_are_those_of_cuda():
    text = """
        #include <a.h>
        #ifdef USE_ROCM
        #include <rocm.h>
        #if defined(OTHER)
        #include <rocm_other.h>
        #endif
        #else
        # include "b.h"
        #endif
        #if !defined(USE_ROCM) && defined(MORE)
        #include <c.h>
        #elif MORE
        #include <rocm_more.h>
        #endif
        #include MACRO
    """
    assert list(ports.included(text)) == [("<", "a.h"), ('"', "b.h"), ("<", "c.h")]


@pytest.mark.slow
def test_the_kernels_of_the_first_release(nvcc: Toolchain, tmp_path: Path):
    try:
        kernels = list(ports.build_all("0.5.7", tmp_path))
    except subprocess.CalledProcessError:
        pytest.skip("no package index has sglang==0.5.7")
    assert [kernel.name for kernel in kernels if kernel.in_scope and kernel.reason] == []
    assert [kernel.name for kernel in kernels if kernel.in_scope] == [
        "add_constant: add_constant",
        "cuda_wait_value: cuda_wait_value",
        "hicache: hicache",
        "norm: norm",
    ]
