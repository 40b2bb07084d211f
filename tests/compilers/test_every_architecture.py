"""The kernels that installed families declare compile for each architecture that they may meet, without a GPU."""

from __future__ import annotations

import functools

import pytest

from sgljit_core import ops, parallel_compile
from sgljit_core.jit.kernels import build
from sgljit_tools.recording.recorder import record

ARCHITECTURES = ["7.5", "8.0", "8.9", "9.0", "10.0", "12.0"]  # from Turing to consumers' Blackwell
MANY = 100  # of so many kernels, most are a functor's for another size: some show what an architecture lacks


@pytest.mark.slow
@pytest.mark.parametrize("cuda_arch", ARCHITECTURES)
@pytest.mark.parametrize("family", sorted(ops))
def test_declared_kernels_compile(family: str, cuda_arch: str) -> None:
    recorded = record([family], cuda_arch=cuda_arch, on_cpu=False)
    kernels = [wanted for wanted in recorded.wanted if wanted.spec.kernel]
    step = (2 if cuda_arch == "9.0" else 5) if len(kernels) > MANY else 1
    parallel_compile([functools.partial(build, wanted) for wanted in kernels[::step]])
    assert kernels or family == "add_constant"  # it takes the other road, load_jit
