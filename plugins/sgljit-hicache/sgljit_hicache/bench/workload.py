"""What the benchmarks of this family share: caches larger than the last cache, calls that take turns, timing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

POOL_ROWS = 65536
ROW_BYTES = 2048
MAX_CALLS = 32

Transfer = Callable[[list[torch.Tensor]], object]

DIRECTIONS = {"h2d": ("cuda", "host"), "d2h": ("host", "cuda"), "d2d": ("cuda", "cuda")}


@dataclass
class Workload:
    """Calls of one transfer, each with rows of its own, so that data comes from memory and not from a cache.

    ``calls`` holds, for each, [k_dst, v_dst, indices_dst, k_src, v_src, indices_src].
    """

    calls: list[list[torch.Tensor]]
    bytes_of_a_call: int


def make_pool(where: str, rows: int = POOL_ROWS, row_bytes: int = ROW_BYTES) -> torch.Tensor:
    """Random rows on the device or in pinned memory."""
    pool = torch.randint(0, 256, (rows, row_bytes), dtype=torch.uint8, device="cuda")
    return torch.empty(pool.shape, dtype=torch.uint8, pin_memory=True).copy_(pool) if where == "host" else pool


def make_workload(direction: str, rows: int, page: int = 1, pools: Sequence[torch.Tensor] | None = None) -> Workload:
    """``rows`` rows of K and of V a call, at random places, in pages of ``page`` rows."""
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
    run(work.calls[0])
    torch.cuda.synchronize()
    assert torch.equal(k_dst[at].cpu(), k_src[of].cpu())
    assert torch.equal(v_dst[at].cpu(), v_src[of].cpu())


def seconds_in_graph(calls: Callable[[], object], repeats: int = 15, seconds: float = 0.3) -> float:
    """Median seconds of ``calls``, replayed from a graph, which leaves out the host."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        calls()  # compiled and warm
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        calls()
    times: list[float] = []
    deadline = time.perf_counter() + seconds
    with torch.cuda.stream(stream):
        for _ in range(3):
            graph.replay()
        while len(times) < repeats or time.perf_counter() < deadline:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def seconds_eager(calls: Callable[[], None], repeats: int = 3) -> float:
    """Median seconds of ``calls`` by the clock, for what no graph can hold."""
    calls()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        calls()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def gigabytes_per_second(run: Transfer, work: Workload, eager: bool = False, seconds: float = 0.3) -> float:
    """One way, in units of 10^9 bytes."""

    def calls() -> None:
        for call in work.calls:
            run(call)

    took = seconds_eager(calls) if eager else seconds_in_graph(calls, seconds=seconds)
    return work.bytes_of_a_call * len(work.calls) / took / 1e9


def memcpy_gigabytes_per_second(direction: str, num_bytes: int = 2**28) -> float:
    """A plain copy of as many bytes as one call may be: what the link, or the memory, gives at best."""
    dst, src = (make_pool(where, num_bytes // ROW_BYTES) for where in DIRECTIONS[direction])
    return num_bytes / seconds_in_graph(lambda: dst.copy_(src, non_blocking=True)) / 1e9
