"""Timing kernels and writing results, for authors."""

from sgljit_tools.environment import is_in_ci

from .measure import Figure, cache_bytes, copy_figure, get_benchmark_range, measure, rotate, run_benchmark

__all__ = [
    "Figure",
    "cache_bytes",
    "copy_figure",
    "get_benchmark_range",
    "is_in_ci",
    "measure",
    "rotate",
    "run_benchmark",
]
