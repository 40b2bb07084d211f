"""Which calls do the benchmarks of this family time? They take turns on rows that no call before them has touched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from sgljit_tools.benchmark import run_benchmark

POOL_BYTES = 128 << 20
ROW_BYTES = 2048
FRESH_ROWS = 65536  # of K and of V, which is more than all translations of addresses that the GPU keeps
MAX_CALLS = 512

Transfer = Callable[..., object]

DIRECTIONS = {"h2d": ("cuda", "host"), "d2h": ("host", "cuda"), "d2d": ("cuda", "cuda")}


@dataclass
class Workload:
    """Calls of one transfer, each with its own rows, so that data comes from memory and not from a cache.

    ``calls`` holds, for each, [k_dst, v_dst, indices_dst, k_src, v_src, indices_src].
    """

    calls: list[list[torch.Tensor]]
    bytes_of_a_call: int


def make_pool(where: str, num_bytes: int = POOL_BYTES) -> torch.Tensor:
    """Random bytes on the device or in pinned memory."""
    pool = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, device="cuda")
    return torch.empty(pool.shape, dtype=torch.uint8, pin_memory=True).copy_(pool) if where == "host" else pool


def make_pools(direction: str, num_bytes: int = POOL_BYTES) -> list[torch.Tensor]:
    """K and V of the destination, K and V of the source."""
    return [make_pool(where, num_bytes) for where in DIRECTIONS[direction] for _ in "kv"]


def make_workload(
    pools: Sequence[torch.Tensor], rows: int, row_bytes: int = ROW_BYTES, page: int = 1, in_order: bool = False
) -> Workload:
    """``rows`` rows of K and of V per call, at random places of the pools, in pages of ``page`` rows.

    ``in_order``: each call takes its rows in the ascending order of their places in host memory.
    """
    caches = [pool[: len(pool) // row_bytes * row_bytes].view(-1, row_bytes) for pool in pools]
    pool_rows = len(caches[0])
    count = max(1, min(MAX_CALLS, FRESH_ROWS // rows, pool_rows // rows))
    dst, src = (_distinct(pool_rows, count * rows, page).split(rows) for _ in range(2))
    calls = []
    for i in range(count):
        to, of = dst[i], src[i]
        if in_order:
            order = (src if caches[2].is_pinned() else dst)[i].argsort()
            to, of = to[order], of[order]
        calls.append([*caches[:2], to, *caches[2:], of])
    return Workload(calls, 2 * rows * row_bytes)


def _distinct(rows: int, count: int, page: int) -> torch.Tensor:
    """``count`` of ``rows`` rows, whole pages at random places: one in each of as many parts of equal size."""
    pages = -(-count // page)
    step = rows // page // pages
    starts = torch.arange(pages, device="cuda") * step + torch.randint(step, (pages,), device="cuda")
    starts = starts[torch.randperm(pages, device="cuda")]
    return (starts[:, None] * page + torch.arange(page, device="cuda")).flatten()[:count].contiguous()


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


def memcpy_gigabytes_per_second(pools: Sequence[torch.Tensor], num_bytes: int, seconds: float = 0.1) -> float:
    """Two plain copies, of K and of V, of ``num_bytes`` in all: the limit of the link or of the memory."""
    half = num_bytes // 2
    count = max(1, min(32, len(pools[0]) // half))
    calls = [[whole[i * half : (i + 1) * half] for whole in pools] for i in range(count)]

    def copy(*of: torch.Tensor) -> None:
        for dst, src in zip(of[:2], of[2:], strict=True):
            dst.copy_(src, non_blocking=True)

    return gigabytes_per_second(copy, Workload(calls, num_bytes), seconds=seconds)
