"""How long does a call take, and how close is that to the limit of the machine?

``measure`` gives the time, the rate, and its share of the rate of a plain copy on the same device. Each call gets the
next of several sets of arguments, together larger than the last cache: data comes from memory, as in a model.
"""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from sgljit_tools.environment import is_in_ci

T = TypeVar("T")
Arguments = Sequence[Any]

_QUANTILES = (0.5, 0.2, 0.8)
_CACHES = 2  # the sets of arguments hold so many times the last cache, so that each set is evicted before its next turn
_MAX_SETS = 8192  # also the calls in one turn, so the nodes in a graph
_PIECE = 256 * 2**20  # bytes that are copied at once: one copy of 512 MiB has two thirds of the rate (H200, CUDA 13.0)
_WARM_UP = 3  # turns
_MIN_SAMPLES = 10
_GRAPH_SECONDS, _CLOCK_SECONDS = 2e-3, 1e-3  # a sample: long against the start of a graph, and a clock's reading
_CPU_CACHE = 32 * 2**20  # if the system does not report it


def get_benchmark_range(full_range: Sequence[T], ci_range: Sequence[T]) -> list[T]:
    """The range to measure: the full one, or in continuous integration the short one."""
    return list(ci_range if is_in_ci() else full_range)


@dataclass(frozen=True)
class Figure:
    """One measurement.

    Attributes:
        microseconds, low, high: per call: the median, the 20 % and the 80 % quantile of the samples.
        calls: the number of calls in one sample.
        samples: the number of samples.
        num_bytes: read plus written by one call; 0 if not given.
        copy_microseconds: the time of a plain copy that reads and writes ``num_bytes`` in all; NaN if that is 0.
    """

    microseconds: float
    low: float
    high: float
    calls: int = 1
    samples: int = 1
    num_bytes: int = 0
    copy_microseconds: float = math.nan

    @property
    def gigabytes_per_second(self) -> float:
        """In units of 10^9 bytes, read plus written."""
        return self.num_bytes / self.microseconds / 1e3

    @property
    def percent_of_copy(self) -> float:
        """The rate, relative to that of the plain copy; NaN if there was none."""
        return 100 * self.copy_microseconds / self.microseconds


def run_benchmark(
    fn: Callable[..., object],
    inputs: Sequence[Arguments] | Callable[[], Arguments] = ((),),
    *,
    device: torch.device | str | None = None,
    graph: bool = True,
    seconds: float = 0.2,
) -> tuple[float, float, float]:
    """Microseconds of one call of ``fn``: median, 20 % and 80 % quantile, in ``perf_report``'s order.

    On CUDA a CUDA graph of calls is replayed between two events, which leaves the host out; on the CPU calls are timed
    by the clock. The result of a call stays alive for a turn of all arguments.

    Args:
        fn: called as ``fn(*arguments)``. One turn is not timed: afterwards ``fn`` must be compiled and warm.
        inputs: sets of arguments that take turns; or a function that makes one, for ``rotate``. Without it, ``fn()``
            finds its data where the previous call left them: usually in a cache.
        device: default: that of the first CUDA tensor in ``inputs``, else of any tensor; without tensors, the current
            CUDA device if there is one.
        graph: False for calls that no graph can hold: they are timed by the clock until the device has finished, host
            included.
        seconds: the least time to take samples for; there are at least 10.

    Raises:
        ValueError: there is no set of arguments, or ``inputs`` returned the same memory twice.
    """
    figure = measure(fn, inputs, device=device, graph=graph, seconds=seconds)
    return figure.microseconds, figure.low, figure.high


def measure(
    fn: Callable[..., object],
    inputs: Sequence[Arguments] | Callable[[], Arguments] = ((),),
    *,
    num_bytes: int = 0,
    device: torch.device | str | None = None,
    graph: bool = True,
    seconds: float = 0.2,
) -> Figure:
    """``run_benchmark`` with a rate: bytes moved per second.

    Args:
        fn, inputs, device, graph, seconds: as in ``run_benchmark``.
        num_bytes: the bytes that one call must read plus those that it must write, each once. If given, a plain copy
            is measured too, once in a process for each number of bytes.

    Raises:
        ValueError: as in ``run_benchmark``.
    """
    sets = rotate(inputs) if callable(inputs) else inputs
    if not sets:
        raise ValueError("run_benchmark: inputs is empty; expected at least one set of arguments")
    only, where = sets[0], _device_of(sets, device)

    def run(turns: int) -> None:
        if len(sets) == 1:  # the cheapest loop: some calls on the CPU take no longer than making a list
            for _ in range(turns):
                kept = fn(*only)
        else:
            for _ in range(turns):
                kept = [fn(*arguments) for arguments in sets]
        del kept

    on_cuda = where.type == "cuda"
    with torch.cuda.device(where) if on_cuda else nullcontext():
        if on_cuda and graph:
            turns, timed = _graph_of(run)
        else:
            turns, timed = _by_clock(run, torch.cuda.synchronize if on_cuda else lambda: None)
        times: list[float] = []
        deadline = time.perf_counter() + seconds
        while len(times) < _MIN_SAMPLES or time.perf_counter() < deadline:
            times.append(timed())
    calls = turns * len(sets)
    copy = copy_figure(num_bytes, where).microseconds if num_bytes else math.nan
    values, places = (torch.tensor(numbers, dtype=torch.float64) for numbers in (times, _QUANTILES))
    median, low, high = (torch.quantile(values, places) / calls * 1e6).tolist()
    return Figure(median, low, high, calls, len(times), num_bytes, copy)


def copy_figure(num_bytes: int, device: torch.device | str) -> Figure:
    """A plain copy, ``Tensor.copy_``, that reads and writes ``num_bytes`` in all, from memory to memory.

    Measured once in a process for each number of bytes, device, and number of torch's threads.
    """
    return _copy_figure(num_bytes, torch.empty(0, device=device).device, torch.get_num_threads())  # with its index


@functools.cache
def _copy_figure(num_bytes: int, device: torch.device, _num_threads: int) -> Figure:
    half = max(1, num_bytes // 2)

    def make() -> Arguments:
        # Written, so that the memory is there: of a buffer that nobody wrote Linux has one page of zeros.
        return [torch.ones(half, dtype=torch.uint8, device=device) for _ in ("to", "from")]

    def copy(to: torch.Tensor, from_: torch.Tensor) -> None:
        for piece, source in zip(to.split(_PIECE), from_.split(_PIECE), strict=True):
            piece.copy_(source)

    figure = measure(copy, make, device=device)
    return replace(figure, num_bytes=2 * half, copy_microseconds=figure.microseconds)


def rotate(make: Callable[[], Arguments]) -> list[Arguments]:
    """Sets of arguments that together hold twice the bytes of the last cache of their device: one to 8192.

    At most two in continuous integration, which looks at no figure: half a gigabyte of cache takes minutes to fill.

    Args:
        make: makes one set. Memory that several sets share, such as a weight, counts once.

    Raises:
        ValueError: the second set has no memory of its own.
    """
    sets = [make()]
    storages = _storages(sets[0])
    wanted = _CACHES * cache_bytes(_device_of(sets, None)) if storages else 0
    most = 2 if is_in_ci() else _MAX_SETS
    while sum(storages.values()) < wanted and len(sets) < most:
        sets.append(make())
        before = len(storages)
        storages |= _storages(sets[-1])
        if len(storages) == before:
            raise ValueError(
                "rotate: the second set of arguments has no memory of its own, so calls would find their data in a "
                "cache; expected new tensors from each call of make (or pass a list of sets)"
            )
    return sets


def cache_bytes(device: torch.device | str) -> int:
    """The size of a device's last cache: a GPU's L2; the largest that Linux reports for the first core of a CPU."""
    device = torch.device(device)
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    texts = (file.read_text() for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    return max([_CPU_CACHE, *(int(found[1]) * 1024 for text in texts if (found := re.match(r"(\d+)K$", text)))])


def _storages(arguments: Arguments) -> dict[tuple[torch.device, int], int]:
    """The size of each tensor's memory by its device and address."""
    storages = [tensor.untyped_storage() for tensor in arguments if isinstance(tensor, torch.Tensor)]
    return {(storage.device, storage.data_ptr()): storage.nbytes() for storage in storages}


def _device_of(sets: Sequence[Arguments], device: torch.device | str | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    devices = [device for device, _ in _storages(sets[0])]
    devices = devices or [torch.device("cuda" if torch.cuda.is_available() else "cpu")]
    return next((found for found in devices if found.type == "cuda"), devices[0])


def _by_clock(run: Callable[[int], None], finish: Callable[[], None]) -> tuple[int, Callable[[], float]]:
    """The turns of a sample, and a function that takes one: its seconds."""

    def timed(turns: int) -> float:
        start = time.perf_counter()
        run(turns)
        finish()
        return time.perf_counter() - start

    timed(1)
    turns = math.ceil(_CLOCK_SECONDS / timed(1))
    return turns, lambda: timed(turns)


def _graph_of(run: Callable[[int], None]) -> tuple[int, Callable[[], float]]:
    """The same with a CUDA graph, which is replayed between two events."""
    stream = torch.cuda.Stream()

    def captured(turns: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            run(turns)
        return graph

    def timed() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            start.record()
            graph.replay()
            end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    stream.wait_stream(torch.cuda.current_stream())  # which made the arguments
    with torch.cuda.stream(stream):
        run(1)
    graph = captured(1)
    turns = math.ceil(_GRAPH_SECONDS / min(timed() for _ in range(_WARM_UP)))
    if turns > 1:
        graph = captured(turns)
    for _ in range(_WARM_UP):
        timed()
    return turns, timed
