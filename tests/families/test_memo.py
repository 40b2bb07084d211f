"""cache_once: one call for each set of arguments."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from sgljit_core import cache_once, override_cuda_arch
from sgljit_core.compilers.arch import cuda_target


def test_a_result_is_kept_by_arguments_and_keywords():
    calls = []

    @cache_once
    def build(*args, **kwargs):
        calls.append((args, kwargs))
        return object()

    assert build(1, size=2, flag=3) is build(1, flag=3, size=2)
    assert build(1) is not build(2)
    assert build(1) is not build(1, size=2)
    assert len(calls) == 4


def test_equal_values_of_other_types_are_other_template_arguments():
    @cache_once
    def kind(value):
        return type(value)

    assert [kind(1), kind(True), kind(1.0)] == [int, bool, float]


def test_equal_keyword_values_of_other_types_are_other_template_arguments():
    @cache_once
    def kind(*, value):
        return type(value)

    assert [kind(value=1), kind(value=True), kind(value=1.0)] == [int, bool, float]


def test_threads_that_race_for_a_result_call_once():
    calls = []

    @cache_once
    def slow(x):
        calls.append(x)
        time.sleep(0.05)
        return x

    threads = [threading.Thread(target=slow, args=(i % 2,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(calls) == [0, 1]


def test_two_variants_are_built_side_by_side():
    barrier = threading.Barrier(2, timeout=60)

    @cache_once
    def build(x):
        barrier.wait()  # broken if one build held the other back
        return x

    other = threading.Thread(target=build, args=(1,))
    other.start()
    assert build(2) == 2
    other.join()


def test_an_exception_is_not_kept():
    attempts = []

    @cache_once
    def flaky():
        attempts.append(None)
        if len(attempts) == 1:
            raise OSError("once")
        return "built"

    with pytest.raises(OSError, match="once"):
        flaky()
    assert flaky() == "built"


def test_an_overridden_architecture_has_results_of_its_own():
    @cache_once
    def build():
        return cuda_target().name

    with override_cuda_arch(8, 0):
        assert build() == "sm_80"
    with override_cuda_arch(9, 0):
        assert build() == "sm_90a"


def test_it_traces_under_torch_compile():
    @cache_once
    def scale(x):
        return 3

    scale(7)
    compiled = torch.compile(lambda t: t * scale(7), fullgraph=True, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [3, 3]


def test_a_first_call_traces_under_torch_compile():
    @cache_once
    def scale(x):
        return 3

    compiled = torch.compile(lambda t: t * scale(7), fullgraph=True, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [3, 3]
