"""Time, rate and share of a copy are what they say; arguments take turns past the last cache."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import torch

from sgljit_tools.benchmark import (
    Figure,
    cache_bytes,
    copy_figure,
    get_benchmark_range,
    is_in_ci,
    measure,
    rotate,
    run_benchmark,
)

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_continuous_integration(monkeypatch):
    """The tests run in it, and what they test is otherwise in it."""
    monkeypatch.delenv("CI", raising=False)


@pytest.mark.parametrize(
    ("value", "expected"), [(None, False), ("true", True), ("1", True), ("", False), ("0", False), ("False", False)]
)
def test_continuous_integration_gets_the_short_range(monkeypatch, value, expected):
    if value is not None:
        monkeypatch.setenv("CI", value)
    assert is_in_ci() is expected
    assert get_benchmark_range([1, 2, 3], (1,)) == ([1] if expected else [1, 2, 3])


@pytest.mark.slow
def test_importing_it_imports_no_triton_and_nothing_that_draws():
    code = "import sys, sgljit_tools.benchmark, sgljit_tools.benchmark.results; "
    code += "print(sorted({'triton', 'matplotlib', 'pandas'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def eventually(holds: Callable[[int], bool]) -> bool:
    """Whether it holds at an attempt, by number, within a minute: others may use the machine while a test measures."""
    attempt, end = 0, time.monotonic() + 60
    while not holds(attempt):
        attempt += 1
        if time.monotonic() > end:
            return False
    return True


def test_a_call_of_known_length_is_measured_as_such():
    def holds(_: int) -> bool:
        median, low, high = run_benchmark(lambda: time.sleep(0.002), device="cpu", seconds=0)
        assert median >= 2000
        assert low <= median <= high
        return median < 4000

    assert eventually(holds)


def test_short_calls_are_timed_many_at_a_time():
    def holds(_: int) -> bool:
        figure = measure(lambda: None, device="cpu", seconds=0.01)
        assert figure.samples >= 10
        return figure.calls > 1000 and 0 < figure.microseconds < 10

    assert eventually(holds)


def test_the_median_comes_before_the_other_quantiles(monkeypatch):
    """By a clock of the test's own, whose ten samples are 1 to 5 ms, each twice; two calls before are not timed."""
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    lengths = iter([1e-3, 1e-3, *(n * 1e-3 for n in (4, 1, 3, 2, 5) * 2)])

    def call() -> None:
        nonlocal now
        now += next(lengths)

    assert run_benchmark(call, device="cpu", seconds=0) == pytest.approx((3000, 1800, 4200))


def test_rates_and_the_share_of_a_copy():
    figure = Figure(2.0, 1.0, 3.0, num_bytes=8_000_000, copy_microseconds=1.0)
    assert figure.gigabytes_per_second == 4000
    assert figure.percent_of_copy == 50
    assert math.isnan(Figure(1.0, 1.0, 1.0).percent_of_copy)


def test_sets_of_arguments_take_turns():
    seen: list[int] = []
    figure = measure(seen.append, [[0], [1], [2]], device="cpu", seconds=0)
    assert seen == [0, 1, 2] * (len(seen) // 3)
    turns = figure.calls // 3
    assert len(seen) == 3 * (2 + turns * figure.samples)  # two turns to warm up


def test_in_continuous_integration_two_sets_take_turns(monkeypatch):
    monkeypatch.setenv("CI", "1")
    made, seen = [], []
    measure(seen.append, lambda: made.append(torch.empty(1)) or made[-1:], device="cpu", seconds=0)
    assert len(made) == 2
    assert seen[:2] == made
    assert len(rotate(lambda: [torch.empty(16)])) == 2


def test_results_live_as_long_as_a_turn():
    """A function that allocates its result must not write into the same, cached memory each time."""
    addresses: list[int] = []

    def allocate(_: int) -> torch.Tensor:
        addresses.append((result := torch.empty(2**20)).data_ptr())
        return result

    run_benchmark(allocate, [[i] for i in range(5)], device="cpu", seconds=0)
    assert len(set(addresses[:5])) == 5


def check_rotation(device: torch.device) -> None:
    weight = torch.ones(2**20, dtype=torch.uint8, device=device)
    sets = rotate(lambda: (torch.empty(3 * 2**20, dtype=torch.uint8, device=device), weight, "a word"))
    storages = {arguments[0].untyped_storage().data_ptr() for arguments in sets}
    assert len(storages) == len(sets)
    wanted = 2 * cache_bytes(device)
    held = 3 * 2**20 * len(sets) + weight.nbytes
    assert wanted <= held < wanted + 3 * 2**20  # the weight counts once


def test_inputs_rotate_past_the_last_cache():
    check_rotation(CPU)


def test_the_last_cache_of_this_processor_has_a_plausible_size():
    assert 2**20 <= cache_bytes(CPU) <= 2**32


def test_large_arguments_are_one_set():
    assert len(rotate(lambda: [torch.empty(2 * cache_bytes(CPU), dtype=torch.uint8)])) == 1


def test_small_arguments_end_at_the_largest_graph():
    assert len(rotate(lambda: [torch.empty(16)])) == 8192


def test_a_maker_without_tensors_is_called_once():
    assert rotate(lambda: [1, "two"]) == [[1, "two"]]


def test_a_maker_that_makes_nothing_new_is_refused():
    always = torch.empty(16)
    with pytest.raises(ValueError, match=r"^rotate: the second set of arguments has no memory of its own, so calls "):
        rotate(lambda: [always])


def test_no_arguments_at_all_are_refused():
    with pytest.raises(ValueError, match="inputs is empty; expected at least one set of arguments"):
        run_benchmark(lambda: None, [])


@pytest.fixture
def small_cache(monkeypatch):
    """Half a gigabyte of cache takes seconds to fill, and these tests need no data outside of it."""
    monkeypatch.setattr(importlib.import_module("sgljit_tools.benchmark.measure"), "cache_bytes", lambda _: 2**20)


def check_copy(size: int, device: str, low: float, high: float) -> None:
    def holds(attempt: int) -> bool:
        length = size + 64 * attempt  # a copy of so many bytes is measured once
        make = lambda: [torch.ones(length, dtype=torch.uint8, device=device) for _ in range(2)]  # noqa: E731
        figure = measure(lambda to, from_: to.copy_(from_), make, num_bytes=2 * length)
        assert figure.copy_microseconds == copy_figure(2 * length, device).microseconds
        return low < figure.percent_of_copy < high

    assert eventually(holds)


def test_a_copy_is_measured_once_for_each_number_of_threads(small_cache):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = copy_figure(2**22, "cpu")
        assert copy_figure(2**22, "cpu") is alone
        torch.set_num_threads(2)
        assert copy_figure(2**22, "cpu") is not alone
    finally:
        torch.set_num_threads(before)


def test_a_copy_is_as_fast_as_a_copy(small_cache):
    check_copy(2**24, "cpu", 50, 200)  # on a busy machine


gpu = pytest.mark.gpu


@gpu
def test_inputs_rotate_past_the_gpus_l2():
    check_rotation(torch.device("cuda"))
    assert cache_bytes("cuda") == torch.cuda.get_device_properties(0).L2_cache_size > 2**20


@gpu
def test_every_replay_of_the_graph_runs_every_call():
    counters = [torch.zeros(1, dtype=torch.int64, device="cuda") for _ in range(3)]
    figure = measure(lambda counter: counter.add_(1), [[counter] for counter in counters], seconds=0)
    assert figure.calls % 3 == 0
    turns = figure.calls // 3
    # One turn by itself, three replays of one turn to see how long it takes, then warm-up and samples.
    expected = 1 + 3 + turns * (3 + figure.samples)
    assert [counter.item() for counter in counters] == [expected] * 3


@gpu
def test_a_kernel_of_known_length_is_measured_as_such():
    """Of a length in cycles, so the shorter is the measure of the longer; the clock's rate is only roughly known."""

    def holds(_: int) -> bool:
        shorter, longer = (measure(lambda n=n: torch.cuda._sleep(n), seconds=0.05) for n in (1_000_000, 4_000_000))
        return 250 < shorter.microseconds < 2000 and 3.8 < longer.microseconds / shorter.microseconds < 4.2

    assert eventually(holds)


@gpu
def test_the_host_is_left_out_of_a_graph_and_part_of_the_clock():
    x = torch.zeros(1, device="cuda")

    def slow_host(x: torch.Tensor) -> None:
        time.sleep(0.001)
        x.add_(1)

    assert eventually(lambda _: measure(slow_host, [[x]], seconds=0).microseconds < 50)
    assert measure(slow_host, [[x]], seconds=0, graph=False).microseconds > 1000


@gpu
@pytest.mark.parametrize("size", [2**14, 2**24, 2**27])
def test_a_copy_on_the_gpu_is_as_fast_as_a_copy(size: int):
    check_copy(size, "cuda", 93, 107)


@gpu
def test_rotating_inputs_are_slower_than_cached_ones():
    make = lambda: [torch.ones(2**22, dtype=torch.uint8, device="cuda") for _ in range(2)]  # noqa: E731
    copy = lambda to, from_: to.copy_(from_)  # noqa: E731
    assert eventually(lambda _: measure(copy, make).microseconds > 1.1 * measure(copy, [make()]).microseconds)


@gpu
def test_it_leaves_the_current_device_and_stream_alone():
    before = torch.cuda.current_device(), torch.cuda.current_stream()
    run_benchmark(lambda x: x.add_(1), [[torch.zeros(1, device=torch.device("cuda", torch.cuda.device_count() - 1))]])
    assert (torch.cuda.current_device(), torch.cuda.current_stream()) == before
