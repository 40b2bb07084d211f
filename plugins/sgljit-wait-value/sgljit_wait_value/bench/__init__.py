"""Benchmarks of the family, each a script: ``python -m sgljit_wait_value.bench.bench_wait_value``."""
