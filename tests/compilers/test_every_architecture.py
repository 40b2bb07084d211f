"""The kernels that installed families declare compile for each architecture that they may meet, without a GPU."""

from __future__ import annotations

import functools
import re
from collections import defaultdict

import pytest

from sgljit_core import ops, parallel_compile
from sgljit_core.builds.recording import Wanted
from sgljit_core.jit.kernels import build
from sgljit_tools.recording.recorder import record

ARCHITECTURES = ["7.5", "8.0", "8.9", "9.0", "10.0", "12.0"]  # from Turing to consumers' Blackwell
MANY = 20  # of so many kernels, most are of one form for another size
TOKENS = [1, 2, 7, 8, 64, 100, 512, 1000, 4096, 16384]  # of a call: few, as engines/test_prepare.py tries all of them


def chosen(kernels: list[Wanted], cuda_arch: str) -> list[Wanted]:
    """All kernels of a family, or some of each form where there are many: other ones for each architecture."""
    if len(kernels) <= MANY:
        return kernels
    forms: dict[str, list[Wanted]] = {}
    for wanted in kernels:
        forms.setdefault(re.sub(r"\d+", "", wanted.spec.label), []).append(wanted)
    place, step = ARCHITECTURES.index(cuda_arch), 16 if cuda_arch == "9.0" else 36
    return [wanted for alike in forms.values() for wanted in alike[place % len(alike) :: step]]


@pytest.mark.slow
@pytest.mark.parametrize("cuda_arch", ARCHITECTURES)
def test_declared_kernels_compile(cuda_arch: str) -> None:
    kernels: dict[str, list[Wanted]] = defaultdict(list)
    for wanted in record(ops, cuda_arch=cuda_arch, on_cpu=False, tokens=TOKENS).wanted:
        if wanted.spec.kernel:
            kernels[wanted.spec.family].append(wanted)
    assert kernels.keys() == {*ops} - {"add_constant"}  # which takes the other road, load_jit
    some = [wanted for family in kernels.values() for wanted in chosen(family, cuda_arch)]
    parallel_compile([functools.partial(build, wanted) for wanted in some])
