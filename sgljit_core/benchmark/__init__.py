"""Timing kernels and writing results, for authors. Nothing else in the core imports it."""

from .measure import (
    Figure,
    cache_bytes,
    copy_figure,
    get_benchmark_range,
    is_in_ci,
    measure,
    rotate,
    run_benchmark,
)

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
