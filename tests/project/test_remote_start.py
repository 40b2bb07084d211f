"""The program that starts machines from a store compares each run with its own CPU time, and fails for missed goals."""

from __future__ import annotations

import importlib.util
import sys

import isolated
import pytest


@pytest.fixture(scope="module")
def program():
    spec = importlib.util.spec_from_file_location("remote_start", isolated.ROOT / "bench/remote_start.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run(processes, seconds, cpu, cores=2.0, requests=2.0, compiles=0):
    return {
        "processes": processes,
        "seconds": [seconds] * processes,
        "cpu": cpu,
        "cores": cores,
        "requests": requests,
        "compiles": compiles,
    }


def test_a_run_is_compared_with_its_own_cpu_time(program):
    rows = program.rows_of([run(1, 0.5, 0.4), run(2, 0.6, 0.3), run(20, 6.0, 0.3)])
    shares = [(row["one alone on this share, s"], row["max / share"]) for row in rows]
    # Two processes need 0.3 s of two cores, which is less than the time of one alone.
    assert shares == [("0.50", "1.00"), ("0.50", "1.20"), ("3.00", "2.00")]


@pytest.mark.parametrize(
    ("many", "over", "missed"),
    [
        ({}, "15.0", []),
        ({"seconds": 4.5}, "15.0", []),
        ({"seconds": 4.6}, "15.0", ["the slowest is ready within 1.5 times its share"]),
        ({"requests": 2.05}, "15.0", ["a process makes 2 requests"]),
        ({"compiles": 1}, "15.0", ["nobody compiles"]),
        ({}, "15.1", ["a later artifact takes 15 ms over a local hit"]),
    ],
)
def test_each_goal_that_is_missed_is_named(program, many, over, missed):
    table = program.rows_of([run(1, 0.5, 0.4), run(20, **{"seconds": 3.0, "cpu": 0.3, **many})])
    ones = [{"artifact": "a later one", "over it, ms": over}, {"artifact": "the first", "over it, ms": "42.0"}]
    assert program.missed(table, ones) == missed
