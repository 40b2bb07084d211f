"""The kernels and launches that the host part chooses, with no GPU, and those that are built ahead."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch

from sgljit_hicache.plugin import FAMILY
from sgljit_tools.recording.recorder import record


def chosen(*arguments: object, block_quota: int | None = None) -> str:
    """The kernel of a transfer, as the expression that names it; see csrc/hicache.cpp."""
    text = torch.zeros(256, dtype=torch.uint8)
    FAMILY.host_module().chosen_kernel(text, *arguments, block_quota)
    return bytes(text.tolist()).partition(b"\0")[0].decode()


def chosen_launch(*arguments: int, block_quota: int | None = None) -> tuple[int, ...]:
    """Blocks, threads, and rows of a chunk and of a group of a transfer to the host; see csrc/hicache.cpp."""
    launch = torch.zeros(4, dtype=torch.int64)
    FAMILY.host_module().chosen_launch(launch, *arguments, block_quota)
    return tuple(launch.tolist())


@pytest.mark.parametrize(
    ("row_bytes", "word", "lanes"), [(256, 16, 8), (1152, 16, 8), (2048, 4, 32), (8192, 4, 32), (16384, 16, 8)]
)
def test_a_quiet_backup_stores_one_line_at_a_time_where_rows_wait_for_translations(
    row_bytes: int, word: int, lanes: int
):
    """Not where blocks sort the rows, nor where a row is so long that few translations are needed."""
    assert f"<{row_bytes}, {word}, 2, {lanes}, " in chosen(row_bytes, 2, 64, block_quota=2)
    assert f"<{row_bytes}, 16, 2, 8, " in chosen(row_bytes, 2, 64)


MIB, GIB = 1 << 20, 1 << 30
UNKNOWN = 2**63 - 1  # the span of caches that the host does not know


@pytest.mark.parametrize(
    ("rows", "span", "launch"),
    [
        (8191, 512 * MIB, (32, 1024, 0, 0)),
        (8192, 512 * MIB, (32, 512, 256, 128)),
        (8192, 512 * MIB + 16384, (32, 512, 256, 0)),  # more than 32 KiB of a cache for each row
        (16383, 512 * MIB, (32, 512, 512, 128)),
        (16385, 512 * MIB, (32, 256, 640, 128)),
        (65530, 4 * GIB, (32, 256, 2048, 0)),
        (65536, 4 * GIB, (32, 256, 2048, 128)),
        (65536, 6 * GIB, (32, 256, 2048, 0)),
        (65536, 6 * GIB + 1, (16, 512, 4096, 0)),
        (200000, 6 * GIB + 1, (16, 512, 3200, 128)),
        (16384, UNKNOWN, (16, 512, 1024, 0)),
        (65536, UNKNOWN, (16, 512, 4096, 0)),
    ],
)
def test_blocks_take_groups_of_rows_where_these_are_dense(rows: int, span: int, launch: tuple[int, ...]):
    """Rows of 256 bytes of K and of V."""
    assert chosen_launch(256, 2, rows, span) == launch


@pytest.mark.parametrize(
    ("rows", "row_bytes", "span", "quota", "launch"),
    [
        (16384, 256, 512 * MIB, 1000, (128, 160, 128, 128)),
        (2**27, 16, 4 * GIB, 2**31 - 1, (2**20, 32, 128, 128)),
        (2**27, 16, 2**53, 2**31 - 1, (2**25, 32, 4, 0)),
        (16384, 256, 512 * MIB, 3, (3, 1024, 2816, 128)),
    ],
)
def test_each_block_of_a_large_quota_has_rows(
    rows: int, row_bytes: int, span: int, quota: int, launch: tuple[int, ...]
):
    blocks, _, chunk_rows, group_rows = chosen_launch(row_bytes, 2, rows, span, block_quota=quota)
    assert (blocks - 1) * (group_rows or chunk_rows) < rows
    assert blocks * chunk_rows < 2**32, "the kernel counts them in 32 bits"
    assert chosen_launch(row_bytes, 2, rows, span, block_quota=quota) == launch


PLACES = {
    "transfer_hicache_one_layer": ["Layers<1>"],
    "transfer_hicache_all_layer": ["Layers<96>", "LayerTables"],  # addresses in the launch, or on the device
}


@pytest.mark.slow
def test_a_model_has_the_kernels_of_its_loads_and_backups_built_ahead():
    """Of two models: one whose rows have two kernels, and one whose rows have one."""
    for row_bytes in (2048, 16384):
        shape = SimpleNamespace(caches=2, cache_row=row_bytes // 2, dtype="bfloat16")
        recorded = record(["hicache"], cuda_arch="9.0", on_cpu=False, ops=frozenset(PLACES), model=shape)
        names = [wanted.spec.kernel for wanted in recorded.wanted if wanted.spec.kernel]
        asked = {chosen(row_bytes, 2, 64), chosen(row_bytes, 2, 64, block_quota=2)}
        places = itertools.chain(*PLACES.values())
        assert sorted(names) == sorted(name.replace("Layers<1>", place) for place in places for name in asked)
