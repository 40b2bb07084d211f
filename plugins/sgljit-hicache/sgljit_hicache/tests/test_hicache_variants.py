"""What is built ahead against what the host part asks for, with no GPU: for every architecture the same kernels."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch

from sgljit_core import make_cpp_args, override_cuda_arch
from sgljit_hicache.ops import host_module, variants

# Multiprocessors of a GPU of that compute capability, and the KiB of shared memory that a block may ask for.
GPUS = {
    (7, 5): (72, 64),
    (8, 0): (108, 163),
    (8, 6): (84, 99),
    (8, 7): (16, 163),
    (8, 9): (142, 99),
    (9, 0): (132, 227),
    (10, 0): (148, 227),
    (10, 3): (160, 227),
    (11, 0): (20, 227),
    (12, 0): (170, 99),
    (12, 1): (48, 99),
}
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


def asked_for(arch: tuple[int, int]) -> set[str]:
    """The kernels that transfers of usual rows take there, few and many, in every direction, with and without quota."""
    num_sms, smem = GPUS[arch]
    return {
        chosen(*row, num_rows, *ways, bits, quota, pool, num_sms, smem << 10, arch >= (9, 0))
        for row, num_rows, ways, bits, quota, pool in itertools.product(
            ROWS,
            (1, 16, 100, 300, 2048, 16384, 200_000),
            itertools.product((False, True), repeat=2),
            (32, 64),
            (None, 1, 4, 1000),
            (0, 1 << 40),
        )
    }


@pytest.mark.parametrize("arch", GPUS, ids=str)
def test_every_declared_kernel_is_asked_for_and_no_other(arch: tuple[int, int]):
    assert declared(arch) == asked_for(arch)


def test_a_block_of_bulk_copies_has_the_stages_that_fit():
    def stages(smem: int) -> int:
        text = chosen(2048, 2, 16384, True, False, 64, None, 0, 132, smem, True)
        assert text.startswith("hicache::copy_bulk<2048, 2, 2, ")
        return int(text.split(", ")[3])

    assert [stages(kib << 10) for kib in (227, 99, 70, 69, 52, 51, 30)] == [4, 4, 4, 3, 3, 2, 2]
