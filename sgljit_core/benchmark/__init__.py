"""Timing kernels and writing results, for authors. Nothing else in the core imports it."""

from .measure import Figure as Figure
from .measure import cache_bytes as cache_bytes
from .measure import copy_figure as copy_figure
from .measure import get_benchmark_range as get_benchmark_range
from .measure import is_in_ci as is_in_ci
from .measure import measure as measure
from .measure import on_threads as on_threads
from .measure import rotate as rotate
from .measure import run_benchmark as run_benchmark
