"""Which calls do the benchmarks of this family time? They take turns on caches larger than the last cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from sgljit_core.benchmark import run_benchmark

POOL_ROWS = 65536
ROW_BYTES = 2048
MAX_CALLS = 32

Transfer = Callable[..., object]

DIRECTIONS = {"h2d": ("cuda", "host"), "d2h": ("host", "cuda"), "d2d": ("cuda", "cuda")}


@dataclass
class Workload:
    """Calls of one transfer, each with its own rows, so that data comes from memory and not from a cache.

    ``calls`` holds, for each, [k_dst, v_dst, indices_dst, k_src, v_src, indices_src].
    """

    calls: list[list[torch.Tensor]]
    bytes_of_a_call: int


def make_pool(where: str, rows: int = POOL_ROWS, row_bytes: int = ROW_BYTES) -> torch.Tensor:
    """Random rows on the device or in pinned memory."""
    pool = torch.randint(0, 256, (rows, row_bytes), dtype=torch.uint8, device="cuda")
    return torch.empty(pool.shape, dtype=torch.uint8, pin_memory=True).copy_(pool) if where == "host" else pool


def make_workload(direction: str, rows: int, page: int = 1, pools: Sequence[torch.Tensor] | None = None) -> Workload:
    """``rows`` rows of K and of V per call, at random places, in pages of ``page`` rows."""
    if pools is None:
        pools = [make_pool(where) for where in DIRECTIONS[direction] for _ in "kv"]
    pool_rows, row_bytes = pools[0].shape
    count = max(1, min(MAX_CALLS, pool_rows // rows))
    dst, src = (_permutation(pool_rows, page)[: count * rows].split(rows) for _ in range(2))
    calls = [[*pools[:2], dst[i], *pools[2:], src[i]] for i in range(count)]
    return Workload(calls, 2 * rows * row_bytes)


def _permutation(rows: int, page: int) -> torch.Tensor:
    pages = torch.randperm(rows // page)
    return (pages[:, None] * page + torch.arange(page)).flatten().cuda()


def check(run: Transfer, work: Workload) -> None:
    """The first call moves every byte of its rows."""
    k_dst, v_dst, indices_dst, k_src, v_src, indices_src = work.calls[0]
    at, of = indices_dst.to(k_dst.device), indices_src.to(k_src.device)
    k_dst[at], v_dst[at] = 0, 0
    run(*work.calls[0])
    torch.cuda.synchronize()
    assert torch.equal(k_dst[at].cpu(), k_src[of].cpu())
    assert torch.equal(v_dst[at].cpu(), v_src[of].cpu())


def gigabytes_per_second(run: Transfer, work: Workload, graph: bool = True, seconds: float = 0.1) -> float:
    """GB/s (10^9 bytes) one way, replayed from a graph or, for calls that no graph can hold, with the host's part."""
    microseconds = run_benchmark(run, work.calls, device="cuda", graph=graph, seconds=seconds)[0]
    return work.bytes_of_a_call / microseconds / 1e3


def memcpy_gigabytes_per_second(pools: Sequence[torch.Tensor], num_bytes: int) -> float:
    """Two plain copies, of K and of V, of ``num_bytes`` in all: the limit of the link or of the memory."""
    k_dst, v_dst, k_src, v_src = (pool.flatten() for pool in pools)
    half = num_bytes // 2
    count = max(1, min(MAX_CALLS, len(k_dst) // half))
    calls = [[whole[i * half : (i + 1) * half] for whole in (k_dst, v_dst, k_src, v_src)] for i in range(count)]

    def copy(*of: torch.Tensor) -> None:
        for dst, src in zip(of[:2], of[2:], strict=True):
            dst.copy_(src, non_blocking=True)

    return gigabytes_per_second(copy, Workload(calls, num_bytes))
