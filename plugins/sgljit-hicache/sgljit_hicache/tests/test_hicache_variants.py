"""What is built ahead against what the host part asks for, with no GPU: for every architecture the same kernels."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch

from sgljit_core import make_cpp_args, override_cuda_arch
from sgljit_hicache.ops import host_module, variants

GPUS = [(7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)]
ROWS = [(128, 2), (256, 2), (512, 2), (1024, 2), (2048, 2), (4096, 2), (576, 1), (1152, 1)]  # bytes, caches


def chosen(*arguments: object) -> str:
    """The kernel of a transfer, as the expression that names it; see csrc/hicache.cpp."""
    text = torch.zeros(256, dtype=torch.uint8)
    host_module().chosen_kernel(text, *arguments)
    return bytes(text.tolist()).partition(b"\0")[0].decode()


def declared(arch: tuple[int, int]) -> set[str]:
    """The device kernels that ``variants`` yields for an architecture, as the expressions that name them."""
    with override_cuda_arch(*arch):
        builds = [build for build in variants() if isinstance(build, functools.partial)]
    kernels = [build.args[1:] for build in builds if build.args[0] == "hicache.cuh"]
    names = [f"{name}<{make_cpp_args(*arguments)}>" for name, *arguments in kernels]
    assert len(names) == len(set(names))
    return set(names)


@pytest.mark.parametrize("arch", GPUS, ids=str)
def test_every_declared_kernel_is_asked_for_and_no_other(arch: tuple[int, int]):
    assert declared(arch) == {chosen(*row, bits) for row, bits in itertools.product(ROWS, (32, 64))}
