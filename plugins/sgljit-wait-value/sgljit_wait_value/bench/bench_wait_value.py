"""A round trip between two streams through memory: two waits and two writes.

    python -m sgljit_wait_value.bench.bench_wait_value [--peers DIR] [--output DIR]

Beside this family: the driver's functions called through ctypes, and with ``--peers`` a polling kernel and ``fill_``,
as another library does it. ``--output`` gets wait_value.md and a plot.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from sgljit_core import ops
from sgljit_tools.benchmark.results import write_plot, write_results

ROUNDS = 150  # four operations each, on two streams: both queues must hold all of them
REPEATS = 15
NOTE = """Microseconds of a round trip: two waits and two writes. "queued": all rounds are in the streams before the \
first begins, so that only the device counts; "eager": the host adds to the streams while they run. "/ driver": \
relative to the driver's own functions with the flag in the same place, in the same run. Medians."""

family = ops["wait_value"]

Operation = Callable[[torch.Tensor, int], object]


def of_driver() -> tuple[Operation, Operation]:
    """The driver's own functions: a wait for equality and a write, on the current stream."""
    driver = ctypes.CDLL("libcuda.so.1")

    def call(function: Any, flags: int, flag: torch.Tensor, value: int) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        status = function(stream, ctypes.c_uint64(flag.data_ptr()), ctypes.c_uint32(value), ctypes.c_uint(flags))
        assert status == 0, status

    return (
        functools.partial(call, driver.cuStreamWaitValue32_v2, 1),
        functools.partial(call, driver.cuStreamWriteValue32_v2, 0),
    )


def of_family(wait_mode: str, write_mode: str) -> tuple[Operation, Operation]:
    """This family's ops."""
    return (
        functools.partial(family.stream_wait_value, mode=wait_mode),
        functools.partial(family.stream_write_value, mode=write_mode),
    )


def microseconds(wait: Operation, write: Operation, place: str, queued: bool) -> float:
    """Median of a round trip."""
    where: dict[str, Any] = {"device": "cuda"} if place == "device" else {"pin_memory": True}
    ping, pong = (torch.zeros(1, dtype=torch.int32, **where) for _ in range(2))
    gate = torch.zeros(1, dtype=torch.int32, pin_memory=True)
    streams = [torch.cuda.Stream() for _ in range(2)]
    write(ping, 0)  # load it now: loading a kernel waits for held streams
    wait(ping, 0)
    torch.cuda.synchronize()
    times, value = [], 0
    for repeat in range(REPEATS):
        if queued:
            for stream in streams:
                with torch.cuda.stream(stream):
                    family.stream_wait_value(gate, repeat + 1, mode="driver")
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        start = time.perf_counter()
        events[0].record(streams[0])
        for i in range(value + 1, value + ROUNDS + 1):
            with torch.cuda.stream(streams[0]):
                write(ping, i)
                wait(pong, i)
            with torch.cuda.stream(streams[1]):
                wait(ping, i)
                write(pong, i)
        value += ROUNDS
        events[1].record(streams[0])
        gate[0] = repeat + 1
        torch.cuda.synchronize()
        seconds = events[0].elapsed_time(events[1]) / 1e3 if queued else time.perf_counter() - start
        times.append(seconds / ROUNDS * 1e6)
    return statistics.median(times[2:])


def draw(found: list[dict[str, Any]], path: Path) -> bool:
    """The queued rounds as a plot, if matplotlib is installed."""

    def place(row: Mapping[str, Any]) -> str:
        return f"{row['pair']}; {row['flag']}"

    return write_plot(path, found, ["queued"], place=place, quantity="us", ylabel="microseconds per round trip, queued")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="A round trip between two streams through memory")
    parser.add_argument("--peers", help="a folder with peers.py")
    parser.add_argument("--output", type=Path, help="a directory for wait_value.md and wait_value.svg")
    arguments = parser.parse_args()
    pairs = {
        "driver's functions": of_driver(),
        "ours": of_family("auto", "auto"),
        "ours, kernels": of_family("kernel", "kernel"),
        "our kernel waits, the driver writes": of_family("kernel", "driver"),
        "the driver waits, fill_ writes": (of_family("driver", "driver")[0], torch.Tensor.fill_),
    }
    if arguments.peers is not None:
        sys.path.insert(0, arguments.peers)
        pairs["peer's kernel waits, fill_ writes"] = (
            importlib.import_module("peers").Peers(arguments.peers).stream_wait_value(),
            torch.Tensor.fill_,
        )
    found: list[dict[str, Any]] = []
    for name, (wait, write) in pairs.items():
        for place in ("device", "pinned"):
            if place == "pinned" and ("fill_" in name or "peer" in name):
                continue  # fill_ of a CPU tensor is no operation of a stream
            row: dict[str, Any] = {"pair": name, "flag": place}
            found.append(row | {how: microseconds(wait, write, place, how == "queued") for how in ("queued", "eager")})
    driver = {row["flag"]: row for row in found if row["pair"] == "driver's functions"}
    for row in found:
        for how in ("queued", "eager"):
            row[f"{how} / driver"] = row[how] / driver[row["flag"]][how]
    title = f"A round trip between two streams, {ROUNDS} rounds"
    if arguments.output is None:
        print(write_results(None, title, {"": found}, note=NOTE))
        return
    plots = {title: Path("wait_value.svg")} if draw(found, arguments.output / "wait_value.svg") else {}
    print(write_results(arguments.output / "wait_value.md", title, {"": found}, note=NOTE, plots=plots))


if __name__ == "__main__":
    main()
